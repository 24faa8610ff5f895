"""Who may write a capture directory: live runs whose rollout ids overlap refuse each other (A20, D19).

Rollout ids hold no run id. A second run with the same ids would empty the first one's captures and mix with them, so
each run leaves its ids in a file that it keeps locked while it lives. The lock ends with the process; a file that
nobody locks belongs to a dead run and is removed by the next one that looks.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import StorageError
from gym_ray.model_call_capture.registry import OWN_DIRECTORY
from gym_ray.rollouts.run_files.lock_wait import lock_in_time
from gym_ray.rollouts.store_claim import StoreClaim
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import OWNER_ONLY, OWNER_ONLY_DIRECTORY, make_directory

__all__ = ["CaptureOwner"]

_log = logging.getLogger(__name__)
_DIRECTORY = Path(OWN_DIRECTORY) / "owners"
_ATTEMPT = re.compile(r"-a[1-9][0-9]*\Z")


class CaptureOwner:
    """A run's claim on its rollout ids in a place of captures, held until :meth:`close` or the end of the process.

    Args:
        location: Place of captures; a directory is created where it is missing.
        rollout_ids: The run's ids. An attempt suffix is left off: a run has all attempts of its rollouts (A22).
        output: The run's main output, named in the message that another run gets.

    Raises:
        StorageError: A live run has one of the ids; the message names its output, the id and the remedy. Or the place
            cannot be written, or a directory not locked.
    """

    def __init__(self, location: CaptureLocation, rollout_ids: Iterable[str], output: Path) -> None:
        base_ids = (_ATTEMPT.sub("", rollout_id) for rollout_id in rollout_ids)
        self._claim: _DirectoryClaim | StoreClaim
        if location.directory is not None:
            self._claim = _DirectoryClaim(location.directory, base_ids, output)
        else:
            self._claim = StoreClaim(location, base_ids, output)

    def close(self) -> None:
        """Give the ids back; idempotent."""
        self._claim.close()


class _DirectoryClaim:
    """A claim in a directory, which ends with the lock on its file.

    Args:
        root: The directory.
        rollout_ids: Base ids, without attempts.
        output: The run's main output.

    Raises:
        StorageError: A live run has one of the ids, or the directory cannot be written or locked.
    """

    def __init__(self, root: Path, rollout_ids: Iterable[str], output: Path) -> None:
        self._directory = root / _DIRECTORY
        self._path = self._directory / f"{uuid.uuid4().hex}.ids"
        self._file: BinaryIO | None = None
        try:
            for directory in (root, self._directory.parent, self._directory):
                make_directory(FileCalls(), directory, OWNER_ONLY_DIRECTORY)
            with self._one_at_a_time():
                self._claim(rollout_ids, output)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"{self._directory}: cannot be written or locked: {error}") from error

    def close(self) -> None:
        """Give the ids back; idempotent."""
        file, self._file = self._file, None
        if file is None:
            return
        with file:  # the lock ends with it, so the claim does too where its file cannot be removed
            try:
                with self._one_at_a_time():  # a run that looks meets the whole file or none
                    self._path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("%s: the run's claim on its rollout ids cannot be removed: %s", self._path, error)

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        descriptor = os.open(self._directory / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)
        with os.fdopen(descriptor, "wb") as lock:
            lock_in_time(self._directory / "lock", lock.fileno(), FileCalls())
            yield

    def _others(self) -> list[Path]:
        """Return the files of live runs, and remove those of dead ones."""
        living = []
        for path in self._directory.glob("*.ids"):
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    living.append(path)
                else:
                    path.unlink()
        return living

    def _claim(self, rollout_ids: Iterable[str], output: Path) -> None:
        lines: Iterable[bytes] = (rollout_id.encode() + b"\n" for rollout_id in rollout_ids)
        if others := self._others():
            lines = set(lines)  # held in memory only where there is somebody to compare with
            for other in others:
                self._refuse_overlap(other, lines)
        self._register(lines, output)

    def _refuse_overlap(self, other: Path, mine: set[bytes]) -> None:
        with other.open("rb") as file:
            owner = file.readline().decode().strip()
            taken = next((line for line in file if line in mine), None)
        if taken is not None:
            raise StorageError(
                f"{self._directory.parent.parent}: rollout id {taken.decode().strip()} belongs to the run that "
                f"writes {owner}, which goes on; wait for it or choose another model_call_capture_dir"
            )

    def _register(self, lines: Iterable[bytes], output: Path) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY)
        file = os.fdopen(descriptor, "wb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(f"{output}\n".encode())
            file.writelines(lines)
            file.flush()
        except BaseException:
            self._path.unlink(missing_ok=True)
            file.close()
            raise
        self._file = file
