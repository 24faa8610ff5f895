"""Finds the run that a path on the command line means: its output, its run directory, or the directory of both."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gym_ray.cli.name_lists import some_of
from gym_ray.errors import InputError
from gym_ray.rollouts.run_paths import RunPaths

__all__ = ["OUTPUT_SUFFIX", "find_run", "is_derived"]

OUTPUT_SUFFIX: Final = ".jsonl"
"""How the names of records end."""

_DERIVED: Final = ("_materialized_inputs", "_failures")
_REPORT: Final = "rollout_verdicts.jsonl"


def find_run(place: Path) -> RunPaths:
    """Return the run that ``place`` means.

    Args:
        place: The records of a run, its ``<stem>.run`` directory, or a directory with one run in it.

    Raises:
        InputError: There is no run, or there are several.
    """
    if place.is_file():
        return RunPaths.of(place)
    if not place.is_dir():
        raise InputError(place, 0, "", "there is no such file or directory; name the records of a run")
    outputs = _of_run_directory(place) or _outputs(place)
    if not outputs:
        raise InputError(place, 0, "", "it holds no records of a run; name them")
    if len(outputs) > 1:
        names = some_of(path.name for path in outputs)
        raise InputError(place, 0, "", f"it holds the records of several runs ({names}); name one")
    return RunPaths.of(outputs[0])


def is_derived(path: Path) -> bool:
    """Whether the name of a file says that it only accompanies records: failures, materialised inputs, a report."""
    return path.stem.endswith(_DERIVED) or path.name == _REPORT


def _of_run_directory(place: Path) -> list[Path]:
    """Return the output whose run directory this is, none where it is no run directory."""
    return [path for path in _records(place.absolute().parent) if RunPaths.of(path).directory == place.absolute()]


def _outputs(directory: Path) -> list[Path]:
    """Return the outputs in a directory: files with a run directory, else with materialised inputs, else any."""
    records = _records(directory)
    with_run = [path for path in records if RunPaths.of(path).manifest.is_file()]
    return with_run or [path for path in records if RunPaths.of(path).materialised.is_file()] or records


def _records(directory: Path) -> list[Path]:
    files = [path for path in sorted(directory.glob(f"*{OUTPUT_SUFFIX}")) if path.is_file()]
    return [path for path in files if not is_derived(path)]
