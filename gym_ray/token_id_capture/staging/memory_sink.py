"""Staging in memory: a sink and a source in one, for tests and for trainers whose worker is their own process (C332).

It keeps what every sink and source promises but one thing: nothing here survives the process.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gym_ray.errors import StagedCallMissingError
from gym_ray.token_id_capture.staging.extras_digest import copied_extras
from gym_ray.token_id_capture.staging.records import (
    StagedCallBaseSnapshot,
    StagedCallRecord,
    StageResult,
    default_staging_key,
)
from gym_ray.token_id_capture.token_arrays import TokenArray, join_tokens

__all__ = ["MemoryStaging"]


class MemoryStaging:
    """Keeps staged calls under their default keys; may be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, tuple[StagedCallRecord, dict[str, Any] | None]] = {}

    def __len__(self) -> int:
        """How many calls are kept."""
        return len(self._calls)

    def stage(self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None) -> StageResult:
        """Keep a call; the same one again changes nothing, and another one under its key is refused (C123).

        Attachments that could still be changed are copied. Those of unknown types count as the same only if they are
        the same object.
        """
        key = default_staging_key(record.rollout_id, record.model_call_id)
        kept = None if attachments is None else {name: _copied(value) for name, value in attachments.items()}
        with self._lock:
            known = self._calls.setdefault(key, (record, kept))
        if known[0].digest != record.digest:
            return StageResult(ok=False, staging_key=key, error=f"{key} is staged with digest {known[0].digest}")
        if not _same(known[1] or {}, kept or {}):
            return StageResult(ok=False, staging_key=key, error=f"{key} is staged with other attachments")
        return StageResult(ok=True, staging_key=key)

    def fetch(self, staging_keys: Sequence[str]) -> list[StagedCallBaseSnapshot]:
        """Return one snapshot a key, in the order asked, without extras (C125, C126).

        Raises:
            KeyError: A key is missing or asked for twice.
        """
        return [_base(record) for record, _ in self._found(staging_keys)]

    def fetch_prefix_token_ids(self, staging_keys: Sequence[str]) -> TokenArray:
        """Return the deltas of a chain, given from the root on, as one read-only array (C127).

        Raises:
            KeyError: As :meth:`fetch`.
        """
        return join_tokens([record.token_ids_delta.array for record, _ in self._found(staging_keys)])

    def fetch_extras(self, staging_keys: Sequence[str]) -> list[dict[str, Any] | None]:
        """Return copies of the extras of each call, in the order asked.

        Raises:
            KeyError: As :meth:`fetch`.
        """
        found = (record.extras for record, _ in self._found(staging_keys))
        return [None if extras is None else copied_extras(extras) for extras in found]

    def fetch_attachments(self, staging_key: str) -> dict[str, Any]:
        """Return copies of the attachments of a call by name; empty if it was staged without any.

        Raises:
            KeyError: The key is missing.
        """
        return {name: _copied(value) for name, value in (self._found([staging_key])[0][1] or {}).items()}

    def delete(self, staging_keys: Sequence[str]) -> None:
        """Forget calls; keys that are missing are passed over."""
        with self._lock:
            for key in staging_keys:
                self._calls.pop(key, None)

    def _found(self, keys: Sequence[str]) -> list[tuple[StagedCallRecord, dict[str, Any] | None]]:
        if len(set(keys)) != len(keys):
            raise StagedCallMissingError(next(key for key in keys if keys.count(key) > 1), "asked for twice")
        with self._lock:
            missing = next((key for key in keys if key not in self._calls), None)
            if missing is not None:
                raise StagedCallMissingError(missing, "not staged here")
            return [self._calls[key] for key in keys]


def _base(record: StagedCallRecord) -> StagedCallBaseSnapshot:
    return StagedCallBaseSnapshot(**{name: getattr(record, name) for name in StagedCallBaseSnapshot.model_fields})


def _copied(value: Any) -> Any:
    """Return a value that a change of the one given does not reach, nor one of what is fetched."""
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return np.array(value) if isinstance(value, np.ndarray | array) else value


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return isinstance(one, bytes | str | int | float) and bool(one == other)
