"""How a benchmark of a job stands, as its driver last said it, and whether the driver still says anything.

A driver that was killed leaves ``running`` behind; only the age of its last word tells. Nothing here calls that
success, and nothing claims to know what became of it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import StorageError
from gym_ray.storage.durable_files import replace_file
from gym_ray.storage.local_calls import file_calls_for
from gym_ray.submission.job_states import ENDED_STATES, STATES, BenchmarkState

__all__ = ["HEARTBEAT_S", "SILENT_AFTER_S", "BenchmarkStatus", "is_unix_time", "read_status", "write_status"]

HEARTBEAT_S = 5.0
"""How often a driver renews its status."""

SILENT_AFTER_S = 30.0
"""A driver that said nothing for so long is taken to be gone; file systems that show changes late are allowed for."""

STATUS = "status.json"
_YEAR_9999_S = 253_370_764_800


@dataclass(frozen=True, slots=True)
class BenchmarkStatus:
    """What a driver last said.

    Args:
        state: See :mod:`gym_ray.submission.job_states`.
        exit_code: Exit code of the driver, None until it is known.
        message: Why it is in that state, for people; "" when there is nothing to say.
        started_at: When the driver began, Unix seconds; None before.
        ended_at: When the benchmark was over.
        heartbeat_at: When the driver last said so.
        host: The machine of the driver, "" before.
        pid: Its process there, 0 before.
    """

    state: BenchmarkState = "queued"
    exit_code: int | None = None
    message: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    heartbeat_at: float | None = None
    host: str = ""
    pid: int = 0

    @property
    def ended(self) -> bool:
        """Whether the benchmark is over."""
        return self.state in ENDED_STATES

    def silent_for_s(self, now: float) -> float | None:
        """Return for how long the driver has said nothing, None where it need not or is not overdue.

        Args:
            now: Unix time, seconds. Clocks that differ by less than the allowance do no harm.
        """
        if self.ended or self.heartbeat_at is None:
            return None
        silent = now - self.heartbeat_at
        return silent if silent > SILENT_AFTER_S else None

    def told(self, now: float) -> str:
        """Return one line for people."""
        silent = self.silent_for_s(now)
        if silent is not None and self.heartbeat_at is not None:
            last = datetime.fromtimestamp(self.heartbeat_at, UTC)
            where = f" on {self.host}" if self.host else ""
            return f"{self.state}, but no word since {last:%Y-%m-%d %H:%M:%S} UTC: the driver{where} may be dead"
        return f"{self.state}: {self.message}" if self.message else self.state


def read_status(directory: Path) -> BenchmarkStatus:
    """Return how the benchmark of a directory stands.

    Raises:
        StorageError: The file is absent, cannot be read, or is not what a driver writes.
    """
    path = directory / STATUS
    try:
        data = _read(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}") from error
    value = exact_json.loads_object(data)
    if value is None:
        raise StorageError(
            f"{path}: is damaged: no JSON object; the benchmark's own files beside it tell what was done"
        )
    return _status_of(value, path)


def _read(path: Path) -> bytes:
    """Read a file that is replaced every few seconds: over NFS, the one that was just opened may be gone by then."""
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    return path.read_bytes()


def write_status(directory: Path, status: BenchmarkStatus, *, sync_name: bool = True) -> None:
    """Replace the status of a benchmark; a reader sees the old or the new one.

    Args:
        directory: The benchmark's directory.
        status: The new status.
        sync_name: Make sure that it is the one that a crash leaves.

    Raises:
        OSError: It could not be written.
    """
    data = exact_json.dumps(asdict(status)) + b"\n"
    replace_file(file_calls_for(directory), directory / STATUS, data, 0o644, sync_name=sync_name)


def _status_of(value: Mapping[str, Any], path: Path) -> BenchmarkStatus:
    wrong = [name for name, fits in _FIELDS.items() if not fits(value.get(name))]
    if wrong:
        raise StorageError(f"{path}: is damaged: {', '.join(wrong)}: not what a driver writes")
    return BenchmarkStatus(**{name: value[name] for name in _FIELDS})


def _is_time(value: Any) -> bool:
    return value is None or is_unix_time(value)


def is_unix_time(value: Any) -> bool:
    """Return whether a value of a file is a time in seconds that a calendar has."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _YEAR_9999_S


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_FIELDS = {
    "state": lambda value: value in STATES,
    "exit_code": lambda value: value is None or _is_int(value),
    "message": lambda value: isinstance(value, str),
    "started_at": _is_time,
    "ended_at": _is_time,
    "heartbeat_at": _is_time,
    "host": lambda value: isinstance(value, str),
    "pid": _is_int,
}
