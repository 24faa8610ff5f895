"""Stops the disk at every single call of a rollout's life, and reads what is there and what a power cut would leave."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gym_ray.errors import CaptureError, RolloutRetiredError
from gym_ray.testing.storage_faults import ForgetfulCalls
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot
from gym_ray.token_id_capture.reasons import MARKED_INCOMPLETE
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore


def entry(call_id: str) -> TokenEntry:
    return call_entry(call_id, [1, 2], [3], rollout_id="r0")


class StoppingCalls(ForgetfulCalls):
    """From the n-th change on, every change fails and does nothing; a change may still be cut in two."""

    def __init__(self, changes: int) -> None:
        super().__init__()
        self.left = changes
        self.stopped = False

    def _change(self) -> None:
        if self.left <= 0:
            self.stopped = True
            raise OSError(errno.EIO, "the disk has stopped")
        self.left -= 1

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if self.left == 1 and len(data) > 1:
            self.left = 0
            super().write(fd, data[: len(data) // 2])
        self._change()
        return super().write(fd, data)

    def write_at(self, fd: int, data: bytes, offset: int) -> int:
        self._change()
        return super().write_at(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._change()
        super().truncate(fd, size)

    def sync_data(self, fd: int) -> None:
        self._change()
        super().sync_data(fd)

    def sync(self, fd: int) -> None:
        self._change()
        super().sync(fd)

    def rename(self, source: str, target: str) -> None:
        self._change()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._change()
        super().unlink(path)


class Life:
    """What was acknowledged of a rollout's life until the disk stopped."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.asked: list[str] = []
        self.open: set[str] = set()
        self.marked = self.marking = False
        self.snapshot: TokenCaptureSnapshot | None = None
        self.dropping = self.dropped = False

    async def run(self, store: TokenCaptureStore) -> None:
        for call_id in ("c0", "c1", "c2"):
            await store.begin_call("r0", call_id)
            self.open.add(call_id)
            self.asked.append(call_id)
            if call_id == "c1":
                self.open.discard(call_id)
                await store.end_call("r0", call_id, "withdrawn")
            else:
                await store.put(entry(call_id))
                self.kept.append(call_id)
                self.open.discard(call_id)
        self.snapshot = await store.freeze("r0")
        self.marking = True
        await store.mark_incomplete("r0", "c3")
        self.marked = True
        assert not await store.drop("r0", snapshot_id=self.snapshot.snapshot_id, version=self.snapshot.version)
        self.snapshot = await store.freeze("r0")
        self.dropping = True
        assert await store.drop("r0", snapshot_id=self.snapshot.snapshot_id, version=self.snapshot.version)
        self.dropped = True

    async def check(self, store: TokenCaptureStore) -> None:
        """Hold what is left against what was acknowledged."""
        try:
            found = await store.freeze("r0")
        except RolloutRetiredError:
            assert self.dropping
            assert self.snapshot is not None
            assert await store.drop("r0", snapshot_id=self.snapshot.snapshot_id, version=self.snapshot.version)
            return
        assert not self.dropped
        call_ids = [one.model_call_id for one in found.entries]
        assert set(self.kept) <= set(call_ids) <= set(self.asked)
        assert found.incomplete or not (self.marked or self.open - set(call_ids))
        if self.snapshot is None:
            return
        assert (found.snapshot_id, call_ids) == (self.snapshot.snapshot_id, self.kept)
        stale = {"snapshot_id": self.snapshot.snapshot_id, "version": self.snapshot.version}
        if found != self.snapshot:
            assert self.marking
            assert {problem.reason for problem in found.problems} == {MARKED_INCOMPLETE}
            assert not await store.drop("r0", **stale)
        else:
            assert await store.drop("r0", **stale)


async def survive(life: Life, root: Path, fill: Callable[[Path], Any]) -> None:
    store = TokenCaptureStore(root)
    fill(root)
    await life.check(store)
    await store.close()


async def test_no_step_of_a_life_loses_what_was_acknowledged(tmp_path: Path) -> None:
    changes = 0
    while True:
        life, root, calls = Life(), tmp_path / f"{changes}", StoppingCalls(changes)
        TokenCaptureStore(root)
        store = TokenCaptureStore(root, calls=calls)
        with suppress(CaptureError):
            await life.run(store)
        await store.close()
        await survive(life, tmp_path / f"{changes}-killed", lambda to, root=root: copy(root, to))
        left = calls.after_power_cut(root)
        await survive(life, tmp_path / f"{changes}-power", lambda to, left=left: write(left, to))
        if not calls.stopped:
            break
        changes += 1
    assert life.dropped
    assert changes > 30


def copy(root: Path, to: Path) -> None:
    for path in root.iterdir():
        shutil.copy(path, to / path.name)


def write(files: dict[str, bytes], to: Path) -> None:
    for name, data in files.items():
        (to / name).write_bytes(data)
