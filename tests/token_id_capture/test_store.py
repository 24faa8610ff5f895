from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import (
    CaptureError,
    DamagedRecordError,
    RecordConflictError,
    RefusedRecordError,
    RolloutFrozenError,
    RolloutIdError,
    RolloutRetiredError,
)
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.storage_faults import FaultyCalls, LocklessCalls
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.reasons import (
    CALL_WITHOUT_RECORD,
    CONFLICTING_RECORD,
    DAMAGED_LINE,
    INVALID_RECORD,
    MARKED_INCOMPLETE,
)
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_files.entry_lines import encode_entry


def entry(call_id: str, rollout_id: str = "r0", **members: Any) -> TokenEntry:
    return call_entry(call_id, [1, 2], [3], rollout_id=rollout_id, **members)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TokenCaptureStore]:
    store = TokenCaptureStore(tmp_path)
    yield store
    store.shut_down()


def told(problems: Any) -> list[tuple[str, str]]:
    return [(problem.reason, problem.model_call_id) for problem in problems]


def test_a_directory_is_checked_for_what_the_store_promises_of_it(tmp_path: Path) -> None:
    TokenCaptureStore(tmp_path).check()
    with pytest.raises(CaptureError, match=r"files cannot be locked here: .*no locks; use a file system with"):
        TokenCaptureStore(tmp_path, calls=LocklessCalls()).check()
    assert list(tmp_path.iterdir()) == []


async def test_a_repetition_behind_the_freeze_changes_nothing(store: TokenCaptureStore) -> None:
    await store.put(entry("c0"))
    snapshot = await store.freeze("r0")
    await store.put(entry("c0"))
    await store.put(entry("c0", created_at=9.0))
    with pytest.raises(RolloutFrozenError, match="r0: the rollout is frozen"):
        await store.put(entry("c1"))
    with pytest.raises(RolloutFrozenError):
        await store.put(entry("c0", model="another"))
    assert await store.freeze("r0") == snapshot
    assert await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)


async def test_a_conflict_is_raised_marked_and_named(store: TokenCaptureStore) -> None:
    await store.put(entry("c0"))
    with pytest.raises(RecordConflictError, match="r0: call 'c0' already has another record"):
        await store.put(entry("c0", model="another"))
    assert store.is_incomplete("r0")
    snapshot = await store.freeze("r0")
    assert (snapshot.version, snapshot.incomplete) == (3, True)
    assert told(snapshot.problems) == [(CONFLICTING_RECORD, "c0")]
    assert snapshot.entries == (entry("c0"),)


async def test_a_conflict_is_raised_even_if_it_cannot_be_marked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = FaultyCalls(only=lambda path: path.endswith(".incomplete"))
    store = TokenCaptureStore(tmp_path, calls=calls)
    store.append(entry("c0"))
    calls.open_error = OSError("no inode left")
    with caplog.at_level(logging.ERROR), pytest.raises(RecordConflictError):
        store.append(entry("c0", model="another"))
    assert "r0: the rollout could not be marked incomplete: no inode left" in caplog.text
    store.shut_down()


async def test_equal_and_other_records_of_one_batch(store: TokenCaptureStore) -> None:
    puts = [store.put(entry("c0", model=model)) for model in ("a", "a", "b", "a")]
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(RecordConflictError) in (1, 3)
    assert len(store.read_entries("r0")) == 1
    assert store.is_incomplete("r0")


@pytest.mark.parametrize("log_prob", [float("nan"), float("inf")])
async def test_a_record_that_could_not_be_read_back_is_refused(store: TokenCaptureStore, log_prob: float) -> None:
    broken = entry("c0").model_copy(update={"generation_log_probs": [log_prob]})
    with pytest.raises(RefusedRecordError, match="r0: the record of call 'c0' is refused"):
        await store.put(broken)
    with pytest.raises(RefusedRecordError):
        store.append(entry("c0").model_copy(update={"generation_token_ids": [-1]}))
    assert store.read_entries("r0") == []


@pytest.mark.parametrize("rollout_id", ["", "a/b", "a\n", "../x"])
async def test_an_id_that_names_no_file_is_refused_everywhere(store: TokenCaptureStore, rollout_id: str) -> None:
    with pytest.raises(RolloutIdError):
        store.append(entry("c0", rollout_id))
    for call in (
        store.put(entry("c0", rollout_id)),
        store.begin_call(rollout_id, "c0"),
        store.end_call(rollout_id, "c0", "withdrawn"),
        store.mark_incomplete(rollout_id),
        store.freeze(rollout_id),
        store.drop(rollout_id, snapshot_id="s", version=1),
        store.has_evidence(rollout_id),
    ):
        with pytest.raises(RolloutIdError):
            await call
    for read in (store.read_entries, store.read_packed, store.is_incomplete, store.delete):
        with pytest.raises(RolloutIdError):
            read(rollout_id)
    with pytest.raises(RolloutIdError):
        store.read_since(rollout_id, None)
    assert os.listdir(store.root) == []


async def test_a_withdrawn_call_leaves_the_rollout_complete(store: TokenCaptureStore) -> None:
    await store.begin_call("r0", "c0")
    await store.begin_call("r0", "c1")
    await store.end_call("r0", "c0", "withdrawn", "the engine answered 503")
    await store.put(entry("c1"))
    snapshot = await store.freeze("r0")
    assert (snapshot.incomplete, snapshot.version, snapshot.problems) == (False, 2, ())
    with pytest.raises(RolloutFrozenError, match="call 'c9' stays in it"):
        await store.end_call("r0", "c9", "withdrawn")


async def test_an_untrainable_call_says_why(store: TokenCaptureStore) -> None:
    await store.begin_call("r0", "c0")
    await store.end_call("r0", "c0", "untrainable", "usage_mismatch: 3 of 4 tokens: lost")
    await store.end_call("r0", "c1", "untrainable")
    await store.mark_incomplete("r0", "c2")
    snapshot = await store.freeze("r0")
    assert snapshot.problems == (
        CaptureProblem("usage_mismatch", "c0", "3 of 4 tokens: lost"),
        CaptureProblem("untrainable", "c1"),
        CaptureProblem(MARKED_INCOMPLETE, "c2"),
    )
    assert (snapshot.incomplete, snapshot.version) == (True, 4)
    assert (store.root / "r0.tokens.intents").read_bytes() == b"c0\n"


async def test_an_unknown_outcome_is_refused(store: TokenCaptureStore) -> None:
    with pytest.raises(ValueError, match="'lost' is no outcome"):
        await store.end_call("r0", "c0", "lost")  # type: ignore[arg-type]


@pytest.mark.parametrize("call_id", ["", "a\nb", "\ud800", "\x00"])
async def test_a_call_id_that_is_no_line_cannot_begin(store: TokenCaptureStore, call_id: str) -> None:
    with pytest.raises(ValueError, match="cannot be kept as the id of a begun call"):
        await store.begin_call("r0", call_id)
    await store.mark_incomplete("r0", call_id)
    assert store.is_incomplete("r0")


async def test_begun_calls_show_in_the_snapshot_only(store: TokenCaptureStore) -> None:
    await store.begin_call("r0", "c0")
    assert sorted(os.listdir(store.root)) == ["r0.tokens.intents", "r0.tokens.lock"]
    assert not store.is_incomplete("r0")
    snapshot = await store.freeze("r0")
    assert (snapshot.incomplete, told(snapshot.problems)) == (True, [(CALL_WITHOUT_RECORD, "c0")])
    assert not store.is_incomplete("r0")


async def test_damage_is_named_and_hides_nothing(store: TokenCaptureStore) -> None:
    await store.put(entry("c0"))
    with (store.root / "r0.tokens.jsonl").open("ab") as file:
        file.write(b'{"cut\n' + encode_entry(entry("c1", schema_version=1)).replace(b'_version":1', b'_version":7'))
    await store.put(entry("c2"))
    entries, problems = store.read_packed("r0")
    assert [one.model_call_id for one in entries] == ["c0", "c2"]
    assert told(problems) == [(DAMAGED_LINE, ""), (INVALID_RECORD, "c1")]
    with pytest.raises(DamagedRecordError, match=r"r0: damaged_line: line at byte \d+ is no JSON"):
        store.read_entries("r0")
    snapshot = await store.freeze("r0")
    assert ([one.model_call_id for one in snapshot.packed], snapshot.incomplete) == (["c0", "c2"], True)
    assert snapshot.problems == tuple(problems)
    assert await store.freeze("r0") == snapshot
    assert await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)


async def test_what_appears_behind_a_freeze_moves_the_version(store: TokenCaptureStore) -> None:
    await store.put(entry("c0"))
    snapshot = await store.freeze("r0")
    for late in (encode_entry(entry("c1")), encode_entry(entry("c0", model="other")), b"5\n"):
        with (store.root / "r0.tokens.jsonl").open("ab") as file:
            file.write(late)
        again = await store.freeze("r0")
        assert (again.snapshot_id, again.version) == (snapshot.snapshot_id, snapshot.version + 1)
        assert not await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
        snapshot = again


async def test_lost_flags_are_found_in_the_marks(store: TokenCaptureStore) -> None:
    await store.put(entry("c0"))
    await store.mark_incomplete("r0", "c1")
    (store.root / "r0.tokens.state.json").unlink()
    assert store.is_incomplete("r0")
    await store.put(entry("c2"))
    assert json.loads((store.root / "r0.tokens.state.json").read_bytes())["incomplete"]
    assert (await store.freeze("r0")).incomplete


async def test_a_mark_whose_writer_died_before_the_lifecycle_makes_a_stale_drop_fail(store: TokenCaptureStore) -> None:
    await store.put(entry("c0"))
    snapshot = await store.freeze("r0")
    (store.root / "r0.tokens.incomplete").write_bytes(b"c1\n")
    assert not await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    again = await store.freeze("r0")
    assert (again.incomplete, again.version) == (True, snapshot.version + 1)


async def test_retired_rollouts_take_nothing_and_a_repeated_drop_finishes_the_first(store: TokenCaptureStore) -> None:
    await store.put(entry("c0"))
    await store.begin_call("r0", "c0")
    snapshot = await store.freeze("r0")
    records = (store.root / "r0.tokens.jsonl").read_bytes()
    assert await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    for call in (
        store.put(entry("c0")),
        store.begin_call("r0", "c1"),
        store.end_call("r0", "c0", "withdrawn"),
        store.end_call("r0", "c0", "untrainable"),
        store.mark_incomplete("r0"),
        store.freeze("r0"),
    ):
        with pytest.raises(RolloutRetiredError, match="r0: the rollout is retired"):
            await call
    (store.root / "r0.tokens.jsonl").write_bytes(records)  # as a crash between retirement and removal leaves it
    assert not await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version + 1)
    assert not await store.drop("r0", snapshot_id="other", version=snapshot.version)
    assert await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    assert sorted(os.listdir(store.root)) == ["r0.tokens.lock", "r0.tokens.state.json"]
    assert await store.has_evidence("r0")


async def test_unknown_rollouts_are_asked_about_without_a_trace(store: TokenCaptureStore) -> None:
    assert store.read_entries("r0") == []
    assert store.read_packed("r0") == ([], [])
    assert store.read_since("r0", None).entries == []
    assert not store.is_incomplete("r0")
    assert not await store.has_evidence("r0")
    assert not await store.drop("r0", snapshot_id="s", version=0)
    store.delete("r0")
    assert store.sweep_retired(-1) == 0
    assert os.listdir(store.root) == []


@pytest.mark.parametrize("kind", ["put", "begin", "mark", "withdrawn", "frozen"])
async def test_what_counts_as_evidence(store: TokenCaptureStore, kind: str) -> None:
    if kind == "put":
        await store.put(entry("c0"))
    elif kind == "mark":
        await store.mark_incomplete("r0")
    elif kind == "frozen":
        await store.freeze("r0")
    else:
        await store.begin_call("r0", "c0")
    if kind == "withdrawn":
        await store.end_call("r0", "c0", "withdrawn")
    assert await store.has_evidence("r0") == (kind in ("put", "begin", "mark"))


async def test_a_deleted_rollout_is_new_for_stores_that_knew_it(tmp_path: Path, store: TokenCaptureStore) -> None:
    other = TokenCaptureStore(tmp_path)
    await other.put(entry("c0"))
    await other.begin_call("r0", "c1")
    await other.mark_incomplete("r0")
    cursor = other.read_since("r0", None).cursor
    store.delete("r0")
    store.delete("r0")
    assert os.listdir(tmp_path) == ["r0.tokens.lock"]
    await store.put(entry("d0"))  # as long as the first, and often under its inode number
    await other.put(entry("c0"))
    assert [one.model_call_id for one in other.read_entries("r0")] == ["d0", "c0"]
    since = other.read_since("r0", cursor)
    assert ([one.model_call_id for one in since.entries], since.restarted) == (["d0", "c0"], True)
    snapshot = await other.freeze("r0")
    assert (snapshot.version, snapshot.incomplete) == (3, False)
    await other.close()


async def test_swept_rollouts_are_gone_and_others_stay(store: TokenCaptureStore) -> None:
    for rollout_id in ("live", "frozen", "retired"):
        await store.put(entry("c0", rollout_id))
    await store.freeze("frozen")
    snapshot = await store.freeze("retired")
    await store.drop("retired", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    (store.root / "x y.tokens.state.json").write_bytes(b"{}")  # not a rollout of ours
    assert store.sweep_retired(3600) == 0
    assert store.sweep_retired(-1) == 1
    assert {name.partition(".")[0] for name in os.listdir(store.root)} == {"live", "frozen", "x y"}
    await store.put(entry("c0", "retired"))


async def test_who_reads_on_gets_whole_new_records_only(store: TokenCaptureStore) -> None:
    path = store.root / "r0.tokens.jsonl"
    first = store.read_since("r0", None)
    assert (first.entries, first.cursor.offset, first.restarted) == ([], 0, False)
    await store.put(entry("c0"))
    second = store.read_since("r0", first.cursor)
    assert ([one.model_call_id for one in second.entries], second.restarted) == (["c0"], False)
    assert second.cursor.inode == path.stat().st_ino
    line = encode_entry(entry("c1"))
    with path.open("ab") as file:
        file.write(line[:-1])
    torn = store.read_since("r0", second.cursor)
    assert (torn.entries, torn.cursor) == ([], second.cursor)
    with path.open("ab") as file:
        file.write(b"\n{}\n[]\nno json\n" + encode_entry(entry("c2")) + b"no json yet\n")
    third = store.read_since("r0", torn.cursor)
    assert [one.model_call_id for one in third.entries] == ["c1", "c2"]
    assert third.cursor.offset == path.stat().st_size - len(b"no json yet\n")
    os.truncate(path, len(line))
    cut = store.read_since("r0", third.cursor)
    assert ([one.model_call_id for one in cut.entries], cut.restarted) == (["c0"], True)
    path.unlink()
    gone = store.read_since("r0", cut.cursor)
    assert (gone.entries, gone.cursor.inode, gone.restarted) == ([], 0, True)


async def test_a_closed_store_begins_again_when_it_is_asked(tmp_path: Path) -> None:
    store = TokenCaptureStore(tmp_path)
    await store.close()
    await store.put(entry("c0"))
    await store.close()
    await store.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tokens-")]
    await store.put(entry("c1"))
    assert len((await store.freeze("r0")).entries) == 2
    await store.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("tokens-", "token-store"))]


async def test_a_store_that_nobody_closed_leaves_no_thread(tmp_path: Path) -> None:
    TokenCaptureStore(tmp_path).append(entry("c0"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tokens-")]


async def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    store = TokenCaptureStore(tmp_path)
    for number in range(3):
        rollout_id = f"r{number}"
        await store.begin_call(rollout_id, "c0")
        await store.put(entry("c0", rollout_id))
        await store.mark_incomplete(rollout_id)
        with pytest.raises(RecordConflictError):
            await store.put(entry("c0", rollout_id, model="x"))
        snapshot = await store.freeze(rollout_id)
        store.read_packed(rollout_id)
        store.read_since(rollout_id, None)
        await store.drop(rollout_id, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
        with pytest.raises(RolloutRetiredError):
            await store.put(entry("c0", rollout_id))
    await store.close()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_disk_that_hangs_fails_the_call_in_time_and_keeps_what_it_got(tmp_path: Path) -> None:
    calls = FaultyCalls(only=lambda path: path.endswith((".jsonl", ".intents")))
    store = TokenCaptureStore(tmp_path, calls=calls, timeout_s=0.05)
    calls.sync_gate = threading.Event()
    late = r"call 'c0' was not durable within 0\.05 s"
    with pytest.raises(CaptureError, match=late):
        await store.begin_call("r0", "c0")
    with pytest.raises(CaptureError, match=late):
        store.append(entry("c0", "r1"))
    calls.sync_gate.set()
    await store.close()
    assert [one.model_call_id for one in store.read_entries("r1")] == ["c0"]
    assert (tmp_path / "r0.tokens.intents").read_bytes() == b"c0\n"


async def test_who_stops_waiting_does_not_stop_the_record(tmp_path: Path) -> None:
    calls = FaultyCalls(only=lambda path: path.endswith(".jsonl"))
    calls.sync_gate = threading.Event()
    store = TokenCaptureStore(tmp_path, calls=calls)
    task = asyncio.create_task(store.put(entry("c0")))
    await asyncio.to_thread(calls.syncs_waiting.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    calls.sync_gate.set()
    await store.close()
    assert [one.model_call_id for one in store.read_entries("r0")] == ["c0"]


async def test_a_hung_rollout_holds_up_no_other(tmp_path: Path) -> None:
    calls = FaultyCalls(only=lambda path: path.endswith("/hung.tokens.jsonl"))
    calls.sync_gate = threading.Event()
    store = TokenCaptureStore(tmp_path, calls=calls)
    hung = [asyncio.create_task(store.put(entry(f"c{number}", "hung"))) for number in range(20)]
    await asyncio.to_thread(calls.syncs_waiting.wait)
    await asyncio.gather(*[store.put(entry("c0", f"r{number}")) for number in range(20)])
    snapshot = await store.freeze("r0")
    assert len(snapshot.entries) == 1
    assert not any(task.done() for task in hung)
    calls.sync_gate.set()
    await asyncio.gather(*hung)
    await store.close()


async def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    store = TokenCaptureStore(tmp_path / "tokens")
    (tmp_path / "tokens").rmdir()
    for call in (store.put(entry("c0")), store.mark_incomplete("r0"), store.freeze("r0")):
        with pytest.raises(CaptureError, match=r"r0"):
            await call
    await store.close()
    (tmp_path / "file").touch()
    with pytest.raises(CaptureError, match="the token directory cannot be created"):
        TokenCaptureStore(tmp_path / "file" / "tokens", calls=FileCalls())


async def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    calls = FaultyCalls(only=lambda path: path.endswith((".jsonl", ".state.json")))
    store = TokenCaptureStore(tmp_path, calls=calls)
    store.append(entry("c0"))
    calls.open_error = OSError(5, "bad block")
    with pytest.raises(CaptureError, match=r"r0: the rollout's token files cannot be read: .*bad block"):
        store.read_packed("r0")
    with pytest.raises(CaptureError, match=r"r0: the rollout could not be frozen: .*bad block"):
        await store.freeze("r0")
    with pytest.raises(CaptureError, match="cannot be read"):
        store.is_incomplete("r0")
    with pytest.raises(CaptureError, match="cannot be read"):
        store.read_since("r0", None)
    await store.close()


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    store = TokenCaptureStore(tmp_path / "tokens")
    store.append(entry("c0"))
    asyncio.run(store.begin_call("r0", "c0"))
    asyncio.run(store.mark_incomplete("r0"))
    store.shut_down()
    paths = [tmp_path / "tokens", *(tmp_path / "tokens").iterdir()]
    assert len(paths) == 6
    assert all(path.stat().st_mode & 0o077 == 0 for path in paths)


async def test_how_far_each_rollout_has_come(store: TokenCaptureStore) -> None:
    assert (store.rollout_ids(), store.stage("r0")) == ([], "unknown")
    store.append(entry("c0"))
    await store.begin_call("r1", "c0")
    await store.mark_incomplete("r2")
    assert store.rollout_ids() == ["r0", "r1", "r2"]
    assert [store.stage(rollout_id) for rollout_id in ("r0", "r1", "r2", "r3")] == ["open"] * 3 + ["unknown"]
    snapshot = await store.freeze("r0")
    assert store.stage("r0") == "frozen"
    assert await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    assert store.stage("r0") == "retired"
    store.delete("r0")
    assert (store.rollout_ids(), store.stage("r0")) == (["r1", "r2"], "unknown")
