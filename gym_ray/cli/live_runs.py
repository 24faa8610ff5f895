"""Finds the runs that ``gym-ray status`` and ``gym-ray ctl`` are about: one output, or each benchmark of a job."""

from __future__ import annotations

from pathlib import Path

from gym_ray.errors import RunNotFoundError
from gym_ray.rollouts.control.control_files import ControlPlaces
from gym_ray.rollouts.run_paths import RunPaths

__all__ = ["live_runs"]

_IN_JOB = "artifacts/rollouts.jsonl"


def live_runs(place: Path) -> list[tuple[str, RunPaths]]:
    """Return the runs of a place, each with its name: records of a run, or the directory of a submitted job.

    Raises:
        RunNotFoundError: There are none.
    """
    if place.is_dir():
        found = [(path.name, RunPaths.of(path / _IN_JOB)) for path in sorted(place.iterdir()) if path.is_dir()]
    else:
        found = [(place.name, RunPaths.of(place))]
    runs = [(name, paths) for name, paths in found if ControlPlaces.of(paths).status.is_file()]
    if not runs:
        raise RunNotFoundError(f"{place}: no run; give the records of a run that has begun, or the directory of a job")
    return runs
