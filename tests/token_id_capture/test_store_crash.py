"""Cuts files at every byte, kills a writing process, and forgets what was never synced; then reads what is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_ray.errors import CaptureError
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.killed_process import lines_until_killed
from gym_ray.testing.storage_faults import FaultyCalls, ForgetfulCalls
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot
from gym_ray.token_id_capture.reasons import CALL_WITHOUT_RECORD
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_files.entry_lines import encode_entry

CALLS = ("c0", "c1")
RECORDS, STATE, INTENTS, MARKS = (f"r0.tokens.{suffix}" for suffix in ("jsonl", "state.json", "intents", "incomplete"))


def entry(call_id: str) -> TokenEntry:
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
    return TokenEntry(rollout_id="r0", model_call_id=call_id, **tokens)


class Unsynced(FileCalls):
    """Syncs nothing: what a power cut leaves is not the matter here, and thousands of syncs take minutes."""

    def sync_data(self, fd: int) -> None:
        pass

    def sync(self, fd: int) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TokenCaptureStore]:
    store = TokenCaptureStore(tmp_path / "tokens", calls=Unsynced())
    yield store
    store.shut_down()


async def recorded(store: TokenCaptureStore, *, marked: bool, frozen: bool) -> dict[str, bytes]:
    """Write a rollout with begun calls, and return its files."""
    for call_id in CALLS:
        await store.begin_call("r0", call_id)
        await store.put(entry(call_id))
    if marked:
        await store.mark_incomplete("r0", "c9")
        await store.end_call("r0", "c8", "untrainable", "usage_mismatch: 3 of 4")
    if frozen:
        await store.freeze("r0")
    return {path.name: path.read_bytes() for path in store.root.iterdir()}


def put_back(store: TokenCaptureStore, files: dict[str, bytes], cut: str, size: int) -> None:
    """Restore the files as a crash would leave them that cut one of them short."""
    for path in store.root.iterdir():
        if path.name not in files:
            path.unlink()
    for name, data in files.items():
        left = data[:size] if name == cut else data
        fd = os.open(store.root / name, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(fd, left, 0)  # some file systems sync a file that was emptied first
        os.ftruncate(fd, len(left))
        os.close(fd)


def calls_of(snapshot: TokenCaptureSnapshot) -> list[str]:
    return [one.model_call_id for one in snapshot.entries]


@pytest.mark.parametrize("frozen", [False, True])
async def test_records_cut_anywhere_are_those_that_end_before_the_cut(store: TokenCaptureStore, frozen: bool) -> None:
    files = await recorded(store, marked=False, frozen=frozen)
    lines = [encode_entry(entry(call_id)) for call_id in CALLS]
    for size in range(len(files[RECORDS]) + 1):
        whole = [call_id for number, call_id in enumerate(CALLS) if len(b"".join(lines[: number + 1])) <= size + 1]
        put_back(store, files, RECORDS, size)
        entries, problems = store.read_packed("r0")
        assert [one.model_call_id for one in entries] == whole
        assert [problem.model_call_id for problem in problems] == [call for call in CALLS if call not in whole]
        ended = [call_id for number, call_id in enumerate(CALLS) if len(b"".join(lines[: number + 1])) <= size]
        assert [one.model_call_id for one in store.read_since("r0", None).entries] == ended
        if not frozen:
            await store.put(entry("next"))
            whole = [*whole, "next"]
        snapshot = await store.freeze("r0")
        assert calls_of(snapshot) == whole
        assert snapshot.incomplete == any(call_id not in whole for call_id in CALLS)
        assert (store.root / RECORDS).read_bytes().rstrip(b"\n").count(b"\n") == max(0, len(whole) - 1)


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
async def test_a_state_cut_anywhere_costs_neither_record_nor_mark(
    store: TokenCaptureStore, frozen: bool, marked: bool
) -> None:
    files = await recorded(store, marked=marked, frozen=frozen)
    for size in range(len(files[STATE])):
        put_back(store, files, STATE, size)
        entries, problems = store.read_packed("r0")
        assert [one.model_call_id for one in entries] == list(CALLS)
        assert store.is_incomplete("r0") == bool(problems) == marked
        await store.put(entry("c1"))
        await store.put(entry("next"))
        snapshot = await store.freeze("r0")
        assert (calls_of(snapshot), snapshot.incomplete) == ([*CALLS, "next"], marked)
        await store.mark_incomplete("r0")
        assert not await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)


async def test_intents_cut_anywhere_hide_no_record_and_invent_no_call(store: TokenCaptureStore) -> None:
    files = await recorded(store, marked=False, frozen=False)
    files[INTENTS] += b"open\n"
    for size in range(len(files[INTENTS]) + 1):
        put_back(store, files, INTENTS, size)
        await store.begin_call("r0", "c1")
        snapshot = await store.freeze("r0")
        assert calls_of(snapshot) == list(CALLS)
        is_open = size == len(files[INTENTS])
        told = [(problem.reason, problem.model_call_id) for problem in snapshot.problems]
        assert told == ([(CALL_WITHOUT_RECORD, "open")] if is_open else [])


async def test_marks_cut_anywhere_are_still_marks(store: TokenCaptureStore) -> None:
    files = await recorded(store, marked=True, frozen=False)
    del files[STATE]
    for size in range(len(files[MARKS]) + 1):
        put_back(store, files, MARKS, size)
        assert store.is_incomplete("r0")
        assert await store.has_evidence("r0")
        snapshot = await store.freeze("r0")
        assert (calls_of(snapshot), snapshot.incomplete) == (list(CALLS), True)
        assert snapshot.problems


class PowerCut:
    """A store whose directory can be looked at as a power cut would leave it."""

    def __init__(self, root: Path) -> None:
        self.calls, self.root, self.cuts = ForgetfulCalls(), root, 0
        self.store = TokenCaptureStore(root / "tokens", calls=self.calls)
        self._stores = [self.store]

    def survivor(self) -> TokenCaptureStore:
        self.cuts += 1
        left = TokenCaptureStore(self.root / f"left-{self.cuts}")
        for name, data in self.calls.after_power_cut(self.root / "tokens").items():
            (left.root / name).write_bytes(data)
        self._stores.append(left)
        return left

    def close(self) -> None:
        for store in self._stores:
            store.shut_down()


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[PowerCut]:
    cut = PowerCut(tmp_path)
    yield cut
    cut.close()


async def test_what_was_acknowledged_outlives_a_power_cut(cut: PowerCut) -> None:
    await cut.store.begin_call("r0", "c0")
    assert [one.model_call_id for one in (await cut.survivor().freeze("r0")).problems] == ["c0"]
    await cut.store.put(entry("c0"))
    assert cut.survivor().read_entries("r0") == [entry("c0")]
    await cut.store.begin_call("r0", "c1")
    await cut.store.begin_call("r0", "c2")
    await cut.store.end_call("r0", "c1", "withdrawn")
    await cut.store.put(entry("c2"))
    snapshot = await cut.survivor().freeze("r0")
    assert (calls_of(snapshot), snapshot.incomplete, snapshot.version) == (["c0", "c2"], False, 3)
    snapshot = await cut.store.freeze("r0")
    assert await cut.survivor().freeze("r0") == snapshot
    await cut.store.mark_incomplete("r0", "c3")
    survivor = cut.survivor()
    assert survivor.is_incomplete("r0")
    assert not await survivor.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    snapshot = await cut.store.freeze("r0")
    assert await cut.survivor().freeze("r0") == snapshot
    assert await cut.store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    assert await cut.survivor().drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    assert cut.survivor().read_packed("r0")[0] == []
    cut.store.delete("r0")
    assert not await cut.survivor().has_evidence("r0")


async def test_the_first_record_of_a_rollout_outlives_a_power_cut_with_its_name(cut: PowerCut) -> None:
    cut.store.append(entry("c0"))
    assert cut.survivor().read_entries("r0") == [entry("c0")]


async def test_a_mark_alone_outlives_a_power_cut(cut: PowerCut) -> None:
    await cut.store.mark_incomplete("r0")
    assert cut.survivor().is_incomplete("r0")


async def test_a_record_that_others_wrote_is_durable_when_it_is_acknowledged(cut: PowerCut) -> None:
    with (cut.root / "tokens" / RECORDS).open("wb") as file:
        file.write(encode_entry(entry("c0")))  # its writer died before it could sync
    assert cut.survivor().read_entries("r0") == []
    await cut.store.put(entry("c0"))
    assert cut.survivor().read_entries("r0") == [entry("c0")]


@pytest.mark.parametrize(
    ("suffix", "failing"),
    [
        (".jsonl", {"put"}),
        (".intents", {"begin"}),
        (".incomplete", {"mark"}),
        (".state.json", {"mark", "freeze"}),
    ],
)
async def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path, suffix: str, failing: set[str]) -> None:
    calls = FaultyCalls(only=lambda path: path.endswith(suffix))
    store = TokenCaptureStore(tmp_path, calls=calls)
    await store.begin_call("r0", "c0")
    await store.put(entry("c0"))
    calls.write_error = OSError(28, "no space left")
    doing = {
        "begin": store.begin_call("r0", "c1"),
        "put": store.put(entry("c1")),
        "mark": store.mark_incomplete("r0", "c2"),
        "freeze": store.freeze("r0"),
    }
    for name, call in doing.items():
        calls.bytes_before_error = 1
        if name in failing:
            with pytest.raises(CaptureError, match="no space left"):
                await call
        else:
            await call
    calls.write_error = None
    snapshot = await store.freeze("r0")
    assert calls_of(snapshot) == (["c0"] if "put" in failing else ["c0", "c1"])
    told = {problem.model_call_id for problem in snapshot.problems}
    assert ("c2" in told) == (suffix != ".incomplete")  # a mark that only half arrived still counts
    assert ("c1" in told) == (suffix == ".jsonl")
    await store.close()


ROLLOUTS = 6

WRITER = """
import asyncio, os, sys
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.store import TokenCaptureStore

store = TokenCaptureStore(sys.argv[1])

async def client(rollout_id, name):
    number = 0
    while True:
        call_id = f"{name}-{number}"
        os.write(1, f"begins {rollout_id} {call_id}\\n".encode())
        await store.begin_call(rollout_id, call_id)
        os.write(1, f"begun {rollout_id} {call_id}\\n".encode())
        if number % 5 == 4:
            await store.end_call(rollout_id, call_id, "withdrawn")
            os.write(1, f"withdrawn {rollout_id} {call_id}\\n".encode())
        else:
            await store.put(call_entry(call_id, range(200), range(50), rollout_id=rollout_id))
            os.write(1, f"kept {rollout_id} {call_id}\\n".encode())
        number += 1

async def main():
    await asyncio.gather(*(client(f"{number}-0", name) for number in range(int(sys.argv[2])) for name in "ab"))

asyncio.run(main())
"""


def run_and_kill(root: Path, after_lines: int) -> dict[str, set[tuple[str, str]]]:
    """Return the calls by what the clients were told of them up to the kill."""
    lines = lines_until_killed([sys.executable, "-c", WRITER, str(root), str(ROLLOUTS)], after_lines)
    told: dict[str, set[tuple[str, str]]] = {what: set() for what in ("begins", "begun", "kept", "withdrawn")}
    for line in lines:
        what, rollout_id, call_id = line.decode().split()
        told[what].add((rollout_id, call_id))
    return told


async def check(root: Path, told: dict[str, set[tuple[str, str]]]) -> None:
    store = TokenCaptureStore(root)
    recorded, open_calls = set(), set()
    for number in range(ROLLOUTS):
        rollout_id = f"{number}-0"
        store.append(call_entry("next", [1], [2], rollout_id=rollout_id))
        snapshot = await store.freeze(rollout_id)
        assert {problem.reason for problem in snapshot.problems} <= {CALL_WITHOUT_RECORD}
        assert snapshot.incomplete == bool(snapshot.problems)
        recorded |= {(rollout_id, one.model_call_id) for one in snapshot.packed} - {(rollout_id, "next")}
        open_calls |= {(rollout_id, problem.model_call_id) for problem in snapshot.problems}
    assert told["kept"] <= recorded <= told["begins"]
    assert open_calls <= told["begins"] - recorded - told["withdrawn"]
    for call in told["begun"] - recorded - open_calls:  # none is forgotten, unless it was being withdrawn
        assert int(call[1].partition("-")[2]) % 5 == 4
    await store.close()


async def kill_often(root: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    in_flight = 0
    for number in range(kills):
        told = run_and_kill(root / str(number), chance.randrange(20, 400))
        in_flight += len(told["begins"] - told["kept"] - told["withdrawn"]) > 0
        await check(root / str(number), told)
    assert in_flight >= kills / 2  # otherwise the kills proved nothing


async def test_what_was_acknowledged_survives_kill_9_and_the_rest_is_open(tmp_path: Path) -> None:
    await kill_often(tmp_path, kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_many_kills(tmp_path: Path) -> None:
    await kill_often(tmp_path, kills=60, seed=2)


def test_a_writer_that_dies_holding_the_lock_holds_up_nobody(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from gym_ray.storage.calls import FileCalls\n"
        "from gym_ray.testing.token_source import call_entry\n"
        "from gym_ray.token_id_capture.store import TokenCaptureStore\n"
        "class Dies(FileCalls):\n"
        "    def write(self, fd, data):\n"
        "        done = super().write(fd, data[: max(1, len(data) // 2)])\n"
        "        os.kill(os.getpid(), signal.SIGKILL) if b'prompt' in bytes(data) else None\n"
        "        return done\n"
        "TokenCaptureStore(sys.argv[1], calls=Dies()).append(call_entry('c0', [1, 2], [3], rollout_id='r0'))\n"
    )
    died = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    half, whole = (tmp_path / RECORDS).read_bytes(), call_entry("c0", [1, 2], [3], rollout_id="r0")
    assert encode_entry(whole).startswith(half)
    assert 0 < len(half) < len(encode_entry(whole))
    assert os.path.getsize(tmp_path / STATE) > 0
    store = TokenCaptureStore(tmp_path)
    store.append(whole)
    assert store.read_entries("r0") == [whole]
    store.shut_down()
