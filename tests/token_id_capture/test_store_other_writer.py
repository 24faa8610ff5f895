"""Files go back and forth between the store and a writer that keeps an index in the state and forgives nothing."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.reasons import CALL_WITHOUT_RECORD, MARKED_INCOMPLETE
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore


def entry(call_id: str, **members: Any) -> TokenEntry:
    return call_entry(call_id, [1, 2], [3], rollout_id="r0", **members)


@dataclass
class State:
    """Exactly these members; any other is a TypeError."""

    frozen: bool = False
    retired: bool = False
    incomplete: bool = False
    snapshot_id: str = ""
    version: int = 0
    entry_digests: dict[str, str] = field(default_factory=dict)
    indexed_size: int = 0


class IndexingWriter:
    """The other writer: B60 to B70 to the letter, with a state that is written anew for every record."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, suffix: str) -> Path:
        return self.root / f"r0.tokens.{suffix}"

    @contextmanager
    def state(self) -> Iterator[State]:
        with self.path("lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self.path("state.json")
            state = State(**json.loads(path.read_text())) if path.exists() else State()
            assert not state.retired
            yield state
            temporary = self.path("state.json.tmp")
            temporary.write_text(json.dumps(asdict(state)))
            temporary.replace(path)

    def reconcile(self, state: State) -> None:
        path = self.path("jsonl")
        data = path.read_bytes() if path.exists() else b""
        assert 0 <= state.indexed_size <= len(data)
        for line in data[state.indexed_size :].splitlines(keepends=True):
            if line.strip():
                assert line.endswith(b"\n")
                self.index(state, json.loads(line)["model_call_id"], line)
            state.indexed_size += len(line)

    def index(self, state: State, call_id: str, line: bytes) -> None:
        digest = hashlib.sha256(line.rstrip(b"\n")).hexdigest()
        assert state.entry_digests.get(call_id, digest) == digest
        state.version += call_id not in state.entry_digests
        state.entry_digests[call_id] = digest

    def put(self, record: TokenEntry) -> None:
        members = record.model_dump(mode="json")
        line = json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        with self.state() as state:
            assert not state.frozen
            self.reconcile(state)
            if record.model_call_id not in state.entry_digests:
                with self.path("jsonl").open("ab") as file:
                    file.write(line)
                state.indexed_size += len(line)
            self.index(state, record.model_call_id, line)

    def begin(self, call_id: str) -> None:
        with self.path("intents").open("a") as file:
            file.write(call_id + "\n")

    def mark(self, call_id: str) -> None:
        with self.state() as state:
            state.incomplete = True
            state.version += 1
            with self.path("incomplete").open("a") as file:
                file.write(call_id + "\n")

    def freeze(self) -> tuple[list[str], bool, int, str]:
        with self.state() as state:
            self.reconcile(state)
            if not state.frozen:
                state.frozen, state.snapshot_id = True, uuid.uuid4().hex
                state.version += 1
            intents = self.path("intents").read_text().split("\n")[:-1] if self.path("intents").exists() else []
            dangling = set(intents) - set(state.entry_digests)
            calls = [json.loads(line)["model_call_id"] for line in self.path("jsonl").read_bytes().splitlines() if line]
            return calls, state.incomplete or bool(dangling), state.version, state.snapshot_id


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TokenCaptureStore]:
    store = TokenCaptureStore(tmp_path)
    yield store
    store.shut_down()


async def test_what_the_other_wrote_is_read_and_carried_on(store: TokenCaptureStore) -> None:
    other = IndexingWriter(store.root)
    other.begin("c0")
    other.put(entry("c0", site={"ü": 1}))
    assert store.read_entries("r0") == [entry("c0", site={"ü": 1})]
    await store.put(entry("c0", site={"ü": 1}))
    await store.put(entry("c1"))
    other.put(entry("c2"))
    await store.put(entry("c3"))
    snapshot = await store.freeze("r0")
    assert [one.model_call_id for one in snapshot.entries] == ["c0", "c1", "c2", "c3"]
    assert (snapshot.version, snapshot.incomplete) == (5, False)
    assert await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)


async def test_what_the_store_wrote_is_read_and_carried_on_by_the_other(store: TokenCaptureStore) -> None:
    other = IndexingWriter(store.root)
    await store.begin_call("r0", "c0")
    await store.put(entry("c0"))
    await store.begin_call("r0", "gone")
    await store.end_call("r0", "gone", "withdrawn")
    await store.begin_call("r0", "c1")
    await store.begin_call("r0", "gone-too")
    await store.begin_call("r0", "c2")
    await store.end_call("r0", "gone-too", "withdrawn")
    await store.put(entry("c1"))
    other.put(entry("c2"))
    assert other.freeze()[:3] == (["c0", "c1", "c2"], False, 4)


@pytest.mark.parametrize("marks", [[], ["c9"], ["c9", "c8"]])
async def test_both_count_to_the_same_version(store: TokenCaptureStore, marks: list[str]) -> None:
    other = IndexingWriter(store.root)
    for number in range(4):
        await store.put(entry(f"a{number}"))
        other.put(entry(f"b{number}"))
        if number < len(marks):
            await store.mark_incomplete("r0", marks[number])
            other.mark(marks[number])
    calls, incomplete, version, snapshot_id = other.freeze()
    snapshot = await store.freeze("r0")
    assert (snapshot.version, snapshot.snapshot_id, snapshot.incomplete) == (version, snapshot_id, incomplete)
    assert version == 8 + 2 * len(marks) + 1
    assert [one.model_call_id for one in snapshot.entries] == calls
    other.mark("late")
    assert not await store.drop("r0", snapshot_id=snapshot_id, version=version)


async def test_the_store_freezes_and_the_other_sees_the_same(store: TokenCaptureStore) -> None:
    other = IndexingWriter(store.root)
    other.put(entry("c0"))
    await store.put(entry("c1"))
    await store.end_call("r0", "c9", "untrainable", "usage_mismatch: 3 of 4")
    snapshot = await store.freeze("r0")
    assert other.freeze() == (["c0", "c1"], True, snapshot.version, snapshot.snapshot_id)
    assert await store.freeze("r0") == snapshot
    assert await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    with pytest.raises(AssertionError), other.state():
        pass


async def test_open_calls_and_marks_of_either_make_it_incomplete_for_both(store: TokenCaptureStore) -> None:
    other = IndexingWriter(store.root)
    await store.put(entry("c0"))
    other.begin("c1")
    snapshot = await store.freeze("r0")
    assert [(problem.reason, problem.model_call_id) for problem in snapshot.problems] == [(CALL_WITHOUT_RECORD, "c1")]
    store.delete("r0")
    await store.put(entry("c0"))
    await store.begin_call("r0", "c1")
    assert other.freeze()[1]
    store.delete("r0")
    other.mark("c2")
    await store.put(entry("c0"))
    assert [(problem.reason, problem.model_call_id) for problem in store.read_packed("r0")[1]] == [
        (MARKED_INCOMPLETE, "c2")
    ]


async def test_a_record_that_the_other_could_not_index_any_more_is_found(store: TokenCaptureStore) -> None:
    other = IndexingWriter(store.root)
    other.put(entry("c0"))
    state = (store.root / "r0.tokens.state.json").read_bytes()
    other.put(entry("c1"))
    (store.root / "r0.tokens.state.json").write_bytes(state)  # it died before it wrote its index
    await store.put(entry("c1"))
    await store.put(entry("c2"))
    snapshot = await store.freeze("r0")
    assert ([one.model_call_id for one in snapshot.entries], snapshot.version) == (["c0", "c1", "c2"], 4)


async def test_a_state_that_a_power_cut_left_empty_does_not_lock_the_rollout(store: TokenCaptureStore) -> None:
    other = IndexingWriter(store.root)
    other.put(entry("c0"))
    other.mark("c9")
    os.truncate(store.root / "r0.tokens.state.json", 0)
    with pytest.raises(json.JSONDecodeError):
        other.put(entry("c1"))
    await store.put(entry("c1"))
    other.put(entry("c2"))
    calls, incomplete, version, _ = other.freeze()
    assert (calls, incomplete) == (["c0", "c1", "c2"], True)
    assert (await store.freeze("r0")).version == version
