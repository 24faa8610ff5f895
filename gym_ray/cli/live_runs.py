"""Finds the runs that ``gym-ray status`` and ``gym-ray ctl`` are about: one output, or each benchmark of a job."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from gym_ray.errors import RunNotFoundError, StorageError
from gym_ray.rollouts.control.client import RunStatus, read_status
from gym_ray.rollouts.control.control_files import ControlPlaces
from gym_ray.rollouts.run_manifest import read_manifest
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.submission.planning import OUTPUT

__all__ = ["FilesOfRun", "begun_runs", "read_word", "steerable_runs"]

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FilesOfRun:
    """What the files of a run say that never said itself where it stands.

    Attributes:
        run_id: Its name.
        begun_at: When it began, ISO 8601, "" where nobody noted it.
        rows: All rows.
        records: Rows with a stored result.
        failed_attempts: Stored failures; several may be of one row.
    """

    run_id: str
    begun_at: str
    rows: int
    records: int
    failed_attempts: int

    @property
    def complete(self) -> bool:
        """Whether each row has a result. Where not, some may have failed for good, or run at this moment."""
        return self.records >= self.rows

    def to_dict(self) -> dict[str, object]:
        """Return the same as plain JSON values."""
        return {"state": "unknown", **asdict(self)}


def begun_runs(place: Path) -> list[tuple[str, RunPaths]]:
    """Return the runs of a place, each with its name: records of a run, or the directory of a submitted job.

    Raises:
        RunNotFoundError: None has begun there.
    """
    if place.is_dir():
        found = [(path.name, RunPaths.of(path / OUTPUT)) for path in sorted(place.iterdir()) if path.is_dir()]
    else:
        found = [(place.name, RunPaths.of(place))]
    runs = [(name, paths) for name, paths in found if _has_status(paths) or paths.manifest.is_file()]
    if not runs:
        raise RunNotFoundError(f"{place}: no run; give the records of a run that has begun, or the directory of a job")
    return runs


def steerable_runs(place: Path) -> list[tuple[str, RunPaths]]:
    """Return those of :func:`begun_runs` that have not said that they are over.

    Raises:
        RunNotFoundError: There are none.
    """
    runs = [(name, paths) for name, paths in begun_runs(place) if _has_status(paths) and not read_status(paths).over]
    if not runs:
        raise RunNotFoundError(
            f"{place}: no run that can be asked anything: it is over, or not under way yet; "
            "gym-ray status tells what its files say"
        )
    return runs


def read_word(paths: RunPaths) -> RunStatus | FilesOfRun:
    """Return the last word of a run, or what its files say where it has said none.

    Raises:
        InputError: Its manifest is damaged.
        StorageError: A file cannot be read.
    """
    if _has_status(paths):
        return read_status(paths)
    manifest = read_manifest(paths)
    if manifest is None:
        raise StorageError(f"{paths.manifest}: is gone")
    records, failed = (_lines(path) for path in (paths.output, paths.failures))
    return FilesOfRun(manifest.run_id, manifest.begun_at, manifest.rows, records, failed)


def _has_status(paths: RunPaths) -> bool:
    return ControlPlaces.of(paths).status.is_file()


def _lines(path: Path) -> int:
    """Return how many whole lines a file has; one that is not there has none."""
    try:
        with path.open("rb") as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""))
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error}") from error
