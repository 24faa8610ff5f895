"""Retires rollouts, so that nothing of them is ever recorded again, and deletes them, so that their ids are free.

A fence is written and durable before the rows are removed, and both happen under the lock that every append of the
rollout takes; so a straggler finds the rows or the fence, never neither (C230-C235).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gym_ray.correlation import check_rollout_id
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import OWNER_ONLY, sync_directory
from gym_ray.token_id_capture.staging.ledger_records import RolloutRemoval

__all__ = ["FENCE_SUFFIX", "LEDGER_SUFFIX", "LedgerRemoval", "distinct_rollout_ids"]

LEDGER_SUFFIX: Final = ".lineage.jsonl"
"""What the name of a rollout's ledger ends in (C204)."""
FENCE_SUFFIX: Final = ".lineage.retired"
"""What the name of a retired rollout's fence ends in (C230)."""


def distinct_rollout_ids(rollout_ids: Iterable[str]) -> list[str]:
    """Return the ids in their order, each once, every one of them checked (C226, C233).

    Raises:
        TypeError: One string was given, whose letters are no ids.
        RolloutIdError: One of them is none.
    """
    if isinstance(rollout_ids, str | bytes):
        raise TypeError(f"a list of rollout ids is needed, got the one string {rollout_ids!r}")
    return [check_rollout_id(rollout_id) for rollout_id in dict.fromkeys(rollout_ids)]


class LedgerRemoval:
    """Removes ledger files of one directory. Every method blocks.

    Args:
        root: The directory.
        calls: How the operating system is called.
    """

    def __init__(self, root: Path, calls: FileCalls) -> None:
        self._root, self._calls = root, calls

    def is_fenced(self, rollout_id: str) -> bool:
        """Whether a fence stands; of a rollout that has rows it counts for nothing (C235).

        Raises:
            OSError: It could not be found out.
        """
        try:
            self._calls.stat(self._path(rollout_id, FENCE_SUFFIX))
        except FileNotFoundError:
            return False
        return True

    def retire(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Fence and remove checked, distinct rollouts (C230, C234).

        Raises:
            OSError: It could not be done; to be repeated.
        """
        for rollout_id in rollout_ids:
            self._fence(rollout_id)
        self._sync()
        removed = {rollout_id for rollout_id in rollout_ids if self._remove_fenced(rollout_id)}
        if removed:
            self._sync()
        return _removal(rollout_ids, removed)

    def delete(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Remove checked, distinct rollouts and their fences (C232).

        Raises:
            OSError: It could not be done; to be repeated.
        """
        removed = {rollout_id for rollout_id in rollout_ids if self._remove_with_fence(rollout_id)}
        self._sync()
        return _removal(rollout_ids, removed)

    def _fence(self, rollout_id: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with suppress(FileExistsError):
            self._calls.close(self._calls.open(self._path(rollout_id, FENCE_SUFFIX), flags, OWNER_ONLY))

    def _remove_fenced(self, rollout_id: str) -> bool:
        """Remove a ledger unless its fence is gone: then it was deleted meanwhile, and this is a new one (C234)."""
        with self._locked(rollout_id) as size:
            if size is None or not self.is_fenced(rollout_id):
                return False
            self._unlink(rollout_id, LEDGER_SUFFIX)
        return size > 0

    def _remove_with_fence(self, rollout_id: str) -> bool:
        with self._locked(rollout_id) as size:
            if size is not None:
                self._unlink(rollout_id, LEDGER_SUFFIX)
            self._unlink(rollout_id, FENCE_SUFFIX)
        return bool(size)

    @contextmanager
    def _locked(self, rollout_id: str) -> Iterator[int | None]:
        """Hold the lock of a rollout's ledger, and give its size; None if there is no ledger to lock."""
        path = self._path(rollout_id, LEDGER_SUFFIX)
        while True:
            try:
                fd = self._calls.open(path, os.O_RDWR)
            except FileNotFoundError:
                yield None
                return
            try:
                self._calls.lock_exclusive(fd, wait=True)
                size = self._size_if_current(fd, path)
                if size is not None:
                    yield size
                    return
            finally:
                self._calls.close(fd)  # gives up the lock

    def _size_if_current(self, fd: int, path: str) -> int | None:
        """Return the size of the open file, or None when the name leads to another one or to none by now."""
        held = self._calls.fstat(fd)
        try:
            named = self._calls.stat(path)
        except FileNotFoundError:
            return None
        return held.st_size if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino) else None

    def _unlink(self, rollout_id: str, suffix: str) -> None:
        with suppress(FileNotFoundError):
            self._calls.unlink(self._path(rollout_id, suffix))

    def _sync(self) -> None:
        sync_directory(self._calls, str(self._root))

    def _path(self, rollout_id: str, suffix: str) -> str:
        return f"{self._root}/{rollout_id}{suffix}"


def _removal(rollout_ids: Sequence[str], removed: Set[str]) -> RolloutRemoval:
    return RolloutRemoval(
        removed=[rollout_id for rollout_id in rollout_ids if rollout_id in removed],
        absent=[rollout_id for rollout_id in rollout_ids if rollout_id not in removed],
    )
