"""What changes a rollout as a whole holds once it is acknowledged, and what the system refuses is told in one way."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from gym_ray.errors import CaptureError
from gym_ray.testing.storage_faults import ForgetfulCalls
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_files.entry_lines import encode_entry

Work = Callable[[TokenCaptureStore], Awaitable[object]]


def entry(call_id: str) -> TokenEntry:
    return call_entry(call_id, [1, 2], [3], rollout_id="r0")


class RefusingCalls(ForgetfulCalls):
    """Refuses, once each, the calls that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    def _refuse(self, what: str) -> None:
        if what in self.refused:
            self.refused.discard(what)
            raise OSError(errno.EIO, f"no {what} today")

    def sync(self, fd: int) -> None:
        if Path(self.path_of(fd)).is_dir():
            self._refuse("directory sync")
        super().sync(fd)

    def sync_data(self, fd: int) -> None:
        if self.path_of(fd).endswith(".intents"):
            self._refuse("sync")
        super().sync_data(fd)

    def stat(self, path: str) -> os.stat_result:
        self._refuse("stat")
        return super().stat(path)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        if path.endswith(".state.json"):
            self._refuse("open")
        return super().open(path, flags, mode)


@pytest.fixture
def calls() -> RefusingCalls:
    return RefusingCalls()


@pytest.fixture
def store(tmp_path: Path, calls: RefusingCalls) -> Iterator[TokenCaptureStore]:
    store = TokenCaptureStore(tmp_path / "tokens", calls=calls)
    yield store
    store.shut_down()


async def after_a_power_cut(store: TokenCaptureStore, calls: RefusingCalls, tmp_path: Path) -> TokenCaptureStore:
    """Return a store over what the power cut left; shut down with nothing to give back."""
    left = TokenCaptureStore(tmp_path / "left")
    for name, content in calls.after_power_cut(store.root).items():
        (left.root / name).write_bytes(content)
    return left


async def test_a_snapshot_that_is_given_again_is_durable(
    store: TokenCaptureStore, calls: RefusingCalls, tmp_path: Path
) -> None:
    await store.put(entry("c0"))
    calls.refused = {"directory sync"}
    with pytest.raises(CaptureError, match="could not be frozen"):
        await store.freeze("r0")
    snapshot = await store.freeze("r0")
    left = await after_a_power_cut(store, calls, tmp_path)
    assert await left.freeze("r0") == snapshot
    left.shut_down()


@pytest.mark.parametrize("begun", [["c0"], ["c0", "c1"], ["c1", "c0"]], ids=["alone", "first", "last"])
@pytest.mark.parametrize("refused", ["directory sync", "sync"])
async def test_a_call_that_is_taken_back_again_does_not_return(
    store: TokenCaptureStore, calls: RefusingCalls, tmp_path: Path, begun: list[str], refused: str
) -> None:
    for call_id in begun:
        await store.begin_call("r0", call_id)
    calls.refused = {refused}
    try:
        await store.end_call("r0", "c0", "withdrawn")
    except CaptureError:
        await store.end_call("r0", "c0", "withdrawn")
    left = await after_a_power_cut(store, calls, tmp_path)
    assert [problem.model_call_id for problem in (await left.freeze("r0")).problems] == [*filter("c1".__eq__, begun)]
    left.shut_down()


@pytest.mark.parametrize("in_place", [True, False])
async def test_a_record_that_reached_the_file_behind_a_snapshot_is_not_dropped(
    store: TokenCaptureStore, in_place: bool
) -> None:
    """Whatever wrote it: nothing that a snapshot does not hold may go with it."""
    await store.put(entry("c0"))
    snapshot = await store.freeze("r0")
    records = store.root / "r0.tokens.jsonl"
    content = records.read_bytes() + encode_entry(entry("late"))
    if not in_place:
        records.unlink()
    records.write_bytes(content)
    assert not await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    assert [one.model_call_id for one in store.read_entries("r0")] == ["c0", "late"]


async def test_records_that_a_dead_writer_never_synced_are_durable_in_a_snapshot(
    store: TokenCaptureStore, calls: RefusingCalls, tmp_path: Path
) -> None:
    await store.put(entry("c0"))
    with (store.root / "r0.tokens.jsonl").open("ab") as records:
        records.write(encode_entry(entry("unsynced")))
    snapshot = await store.freeze("r0")
    left = await after_a_power_cut(store, calls, tmp_path)
    assert await left.freeze("r0") == snapshot
    left.shut_down()


async def _drop(store: TokenCaptureStore) -> None:
    await store.drop("r0", snapshot_id="s", version=1)


async def _delete(store: TokenCaptureStore) -> None:
    store.delete("r0")


async def _sweep(store: TokenCaptureStore) -> None:
    store.sweep_retired(-1)


@pytest.mark.parametrize(
    ("work", "refused"),
    [(_drop, "stat"), (_drop, "open"), (_delete, "stat"), (_sweep, "open")],
    ids=["drop", "drop_locked", "delete", "sweep"],
)
async def test_what_the_system_refuses_is_a_capture_error_that_names_the_rollout(
    store: TokenCaptureStore, calls: RefusingCalls, work: Work, refused: str
) -> None:
    await store.put(entry("c0"))
    calls.refused = {refused}
    with pytest.raises(CaptureError, match=rf"r0: the rollout could not be .* no {refused} today"):
        await work(store)
    assert len(store.read_entries("r0")) == 1
