"""Reads the rows of a run one by one, when they are dispatched; a run of a million rows costs no memory here (D18)."""

from __future__ import annotations

import logging
import os
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from gym_ray import exact_json
from gym_ray.correlation import check_rollout_id, derive_rollout_id
from gym_ray.errors import InputError, RolloutIdError, StorageError
from gym_ray.rollouts.rows.row_index import RowIndex, write_row_index
from gym_ray.rollouts.run_manifest import read_manifest
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import sync_directory

__all__ = ["AttemptRow", "MaterialisedRows", "build_row_index"]

_log = logging.getLogger(__name__)


def build_row_index(paths: RunPaths) -> None:
    """Write the index of a run's materialised rows, whole and durable.

    Raises:
        InputError: The rows cannot be read or are cut off.
        StorageError: The index cannot be written.
    """
    temporary = paths.rows_index.with_name(f"rows-{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("w+b") as out:
            write_row_index(paths.materialised, out)
            os.fsync(out.fileno())
        temporary.rename(paths.rows_index)
        sync_directory(FileCalls(), str(paths.directory))
    except OSError as error:
        raise StorageError(f"{paths.rows_index}: the index of the rows cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _stored_index(path: Path) -> RowIndex | None:
    try:
        with path.open("rb") as file:
            return RowIndex(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        _log.warning("%s: %s; it is built again", path, error)
        return None
    except OSError as error:
        raise StorageError(f"{path}: the index of the rows cannot be read: {error}") from error


def _passing_index(path: Path) -> RowIndex:
    with tempfile.TemporaryFile() as out:
        write_row_index(path, out)
        out.seek(0)
        return RowIndex(out)


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """A row made ready for one attempt.

    Attributes:
        data: The row object as JSON.
        rollout_id: Capture key of this attempt.
        agent: Agent that runs it.
    """

    data: bytes
    rollout_id: str
    agent: str


class MaterialisedRows:
    """Random access to the rows of a materialised file. Close it, or use it as a context manager.

    Nothing of it is held in memory: where each row lies stands in an index that is mapped.

    Args:
        path: The rows.
        index: Index of these rows, opened and checked by the caller, closed here; None to build one that nobody keeps.

    Raises:
        InputError: The file is missing, cut off in the middle of a row, or not the one that ``index`` was built from.
    """

    def __init__(self, path: Path, index: RowIndex | None = None) -> None:
        self.path = path
        self._index = _passing_index(path) if index is None else index
        try:
            self._file = path.open("rb")
        except OSError as error:
            self._index.close()
            raise InputError(path, 0, "", f"cannot read the materialised rows: {error.strerror or error}") from error
        size = os.fstat(self._file.fileno()).st_size
        if size != self._index.size:
            self.close()
            problem = f"the file has {size} bytes, but {self._index.size} when it was indexed"
            raise InputError(path, 0, "", f"{problem}; restore it, or start the run afresh")

    @classmethod
    def of(cls, paths: RunPaths) -> MaterialisedRows:
        """Open the rows of a run through its index file, which is built when it is missing, damaged or another run's.

        A file of another size, or one that the manifest does not name, is refused at once. With a good index and a
        manifest nothing of the rows is read.

        Raises:
            InputError: The rows cannot be used, or belong to another run than the manifest.
            StorageError: The index or the manifest cannot be read or written.
        """
        manifest = read_manifest(paths)
        expected = None if manifest is None else manifest.materialized_sha256
        index = _stored_index(paths.rows_index)
        if index is not None and index.sha256 != expected:
            index.close()
            index = None
        if index is None:
            build_row_index(paths)
            index = _stored_index(paths.rows_index)
            if index is None:
                raise StorageError(f"{paths.rows_index}: the index that was just written cannot be read back")
        rows = cls(paths.materialised, index)
        if expected is not None and index.sha256 != expected:
            rows.close()
            problem = f"these are not the rows that {paths.manifest} names; restore them, or start the run afresh"
            raise InputError(paths.materialised, 0, "", problem)
        return rows

    def __len__(self) -> int:
        return len(self._index)

    @property
    def sha256(self) -> str:
        """Digest of the file when it was indexed, hexadecimal."""
        return self._index.sha256

    def __enter__(self) -> MaterialisedRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; safe to repeat."""
        self._file.close()
        self._index.close()

    def size(self, ordinal: int) -> int:
        """Return the bytes of one row, its line feed included; 0 where the index is damaged.

        Raises:
            IndexError: There is no such row.
        """
        return self._row(ordinal)[1]

    def _row(self, ordinal: int) -> tuple[int, int, int]:
        if not 0 <= ordinal < len(self):
            raise IndexError(f"{self.path} has {len(self)} rows, not a row {ordinal}")
        return self._index.row(ordinal)

    def read(self, ordinal: int) -> bytes:
        """Return one row as JSON, without its line feed.

        Raises:
            IndexError: There is no such row.
            InputError: The row is not as it was written.
        """
        offset, length, _ = self._row(ordinal)
        return self._checked(ordinal, os.pread(self._file.fileno(), length - 1, offset) if length > 0 else b"")

    def read_at_once(self, ordinal: int, max_bytes: int) -> bytes | None:
        """Return what :meth:`read` does if that is certain not to wait for a disk: the row is short and in memory.

        Returns:
            The row; None for one that must be read in a thread.

        Raises:
            IndexError: There is no such row.
            InputError: The row is not as it was written.
        """
        offset, length, _ = self._row(ordinal)
        if not 0 < length <= max_bytes:
            return None
        data = bytearray(length - 1)
        try:
            found = os.preadv(self._file.fileno(), [data], offset, os.RWF_NOWAIT)
        except OSError:  # not in memory, or a file system that cannot say; whoever reads it in a thread will see
            return None
        return self._checked(ordinal, bytes(data)) if found == len(data) else None

    def _checked(self, ordinal: int, data: bytes) -> bytes:
        _, length, crc = self._row(ordinal)
        if len(data) != length - 1 or google_crc32c.value(data) != crc:
            problem = "the materialised row is damaged: it is not as it was written; start the run afresh"
            raise InputError(self.path, ordinal + 1, "", problem)
        return data

    def attempt(
        self, ordinal: int, attempt: int, *, reuse_deliverable: bool = False, data: bytes | None = None
    ) -> AttemptRow:
        """Return one row made ready for an attempt: ``_ng_attempt_index`` counts on from the row's own (D10, D55).

        Args:
            ordinal: Which row.
            attempt: 0 for its first attempt.
            reuse_deliverable: Tell the agent that an earlier attempt left something to reuse (D55).
            data: The row, where it was read already.

        Raises:
            InputError: The line is damaged.
        """
        data = self.read(ordinal) if data is None else data
        row = exact_json.loads_object(data)
        if row is None:
            raise InputError(self.path, ordinal + 1, "", "the materialised row is damaged; start the run afresh")
        if reuse_deliverable:
            row["reuse_cached_deliverable"] = True
        if attempt:
            row["_ng_attempt_index"] = self._own_attempt(ordinal, row) + attempt
        if attempt or reuse_deliverable:
            data = exact_json.dumps(row)
        ref = row.get("agent_ref")
        agent = ref.get("name") if isinstance(ref, dict) else None
        if not isinstance(agent, str):
            raise InputError(
                self.path, ordinal + 1, "agent_ref.name", "missing; give the row an agent and start afresh"
            )
        try:
            rollout_id = check_rollout_id(derive_rollout_id(row), "_ng_task_index/_ng_rollout_index")
        except RolloutIdError as error:
            raise InputError(self.path, ordinal + 1, "", str(error)) from error
        return AttemptRow(data, rollout_id, agent)

    def _own_attempt(self, ordinal: int, row: Mapping[str, Any]) -> int:
        own = row.get("_ng_attempt_index") or 0
        if not isinstance(own, int):
            raise InputError(self.path, ordinal + 1, "_ng_attempt_index", f"{own!r} is not a whole number; correct it")
        return own
