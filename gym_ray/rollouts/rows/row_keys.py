"""Finds the row that a record belongs to by its task and rollout index, when no frame tells (D52).

It reads all materialised rows once and keeps 12 bytes for each; a match is proved by reading the row again.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from gym_ray import exact_json
from gym_ray.errors import InputError
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows

__all__ = ["RowKeys", "attempt_index", "key_of"]


def key_of(record: Mapping[str, Any]) -> str | None:
    """Return the text of a record's task and rollout index, None when it has not both."""
    task, rollout = record.get("_ng_task_index"), record.get("_ng_rollout_index")
    if task is None or rollout is None or isinstance(task, dict | list) or isinstance(rollout, dict | list):
        return None
    return f"{task}-{rollout}"


def attempt_index(record: Mapping[str, Any]) -> int:
    """Return ``_ng_attempt_index`` of a row or record, 0 where it has none that is a number (D20)."""
    try:
        return max(0, int(record.get("_ng_attempt_index") or 0))
    except (TypeError, ValueError, OverflowError):
        return 0


class RowKeys:
    """The keys of all rows of a run.

    Args:
        rows: The rows; they stay open as long as this is used.

    Attributes:
        warnings: One sentence for each row that is damaged, so that no record can be found to be its.
    """

    def __init__(self, rows: MaterialisedRows) -> None:
        self._rows, self.warnings = rows, list[str]()
        hashes = array("Q")
        ordinals = array("L")
        for ordinal in range(len(rows)):
            row = self._row(ordinal)
            key = None if row is None else key_of(row)
            if key is None:
                self.warnings.append(f"{rows.path}:{ordinal + 1}: the row is damaged and cannot be told from others")
                continue
            hashes.append(_hash(key))
            ordinals.append(ordinal)
        order = np.argsort(np.frombuffer(hashes, np.uint64), kind="stable") if hashes else np.zeros(0, np.int64)
        self._hashes = np.frombuffer(hashes, np.uint64)[order] if hashes else np.zeros(0, np.uint64)
        self._ordinals = np.frombuffer(ordinals, f"u{ordinals.itemsize}")[order].astype(np.uint32) if hashes else order

    def _row(self, ordinal: int) -> dict[str, Any] | None:
        try:
            return exact_json.loads_object(self._rows.read(ordinal))
        except InputError:
            return None

    def find(self, key: str) -> tuple[int, int] | None:
        """Return ordinal and own ``_ng_attempt_index`` of the row with a key, None when no row has it.

        Raises:
            InputError: Two rows have it.
        """
        wanted, found = np.uint64(_hash(key)), None
        first, behind = np.searchsorted(self._hashes, wanted, "left"), np.searchsorted(self._hashes, wanted, "right")
        for ordinal in map(int, self._ordinals[first:behind]):
            row = self._row(ordinal)
            if row is None or key_of(row) != key:
                continue
            if found is not None:
                problem = f"has the same _ng_task_index and _ng_rollout_index as row {found[0] + 1} ({key})"
                raise InputError(self._rows.path, ordinal + 1, "_ng_task_index", problem)
            found = ordinal, attempt_index(row)
        return found


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
