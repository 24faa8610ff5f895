from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gym_ray.errors import RecordConflictError, RolloutFrozenError
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore


def entry(call_id: str, **members: object) -> TokenEntry:
    return call_entry(call_id, range(50), range(20), rollout_id="r0", **members)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TokenCaptureStore]:
    store = TokenCaptureStore(tmp_path)
    yield store
    store.shut_down()


def in_threads(count: int, work: Callable[[int], object]) -> list[object]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


@pytest.mark.parametrize("stores", [1, 4])
def test_32_threads_leave_32_records(tmp_path: Path, stores: int) -> None:
    clients = [TokenCaptureStore(tmp_path) for _ in range(stores)]
    in_threads(32, lambda number: clients[number % stores].append(entry(f"c{number}")))
    snapshot = asyncio.run(clients[0].freeze("r0"))
    assert sorted(one.model_call_id for one in snapshot.entries) == sorted(f"c{number}" for number in range(32))
    assert (snapshot.incomplete, snapshot.version) == (False, 33)
    for client in clients:
        client.shut_down()


def test_one_record_put_by_many_is_there_once(tmp_path: Path) -> None:
    clients = [TokenCaptureStore(tmp_path) for _ in range(4)]
    in_threads(32, lambda number: clients[number % 4].append(entry("c0", created_at=float(number % 3))))
    snapshot = asyncio.run(clients[0].freeze("r0"))
    assert (len(snapshot.entries), snapshot.version, snapshot.incomplete) == (1, 2, False)
    assert (tmp_path / "r0.tokens.jsonl").read_bytes().count(b"\n") == 1
    for client in clients:
        client.shut_down()


def test_of_many_contradictions_one_stands(store: TokenCaptureStore) -> None:
    def put(number: int) -> bool:
        try:
            store.append(entry("c0", model=f"m{number}"))
        except RecordConflictError:
            return False
        return True

    assert in_threads(8, put).count(True) == 1
    assert store.is_incomplete("r0")
    assert len(store.read_entries("r0")) == 1


def test_a_freeze_among_puts_takes_all_that_were_acknowledged_and_refuses_the_rest(tmp_path: Path) -> None:
    for number in range(5):
        store, other = TokenCaptureStore(tmp_path / str(number)), TokenCaptureStore(tmp_path / str(number))
        kept: list[str] = []
        refused: list[str] = []
        first = threading.Event()

        def put(
            number: int, store: TokenCaptureStore, kept: list[str], refused: list[str], first: threading.Event
        ) -> None:
            for turn in range(6):
                call_id = f"c{number}-{turn}"
                try:
                    store.append(entry(call_id))
                    kept.append(call_id)
                    first.set()
                except RolloutFrozenError:
                    refused.append(call_id)

        threads = [threading.Thread(target=put, args=(one, store, kept, refused, first)) for one in range(6)]
        for thread in threads:
            thread.start()
        first.wait(20)
        snapshot = asyncio.run(other.freeze("r0"))
        for thread in threads:
            thread.join()
        assert {one.model_call_id for one in snapshot.entries} == set(kept)
        assert len(kept) + len(refused) == 36
        assert asyncio.run(other.freeze("r0")) == snapshot
        for one in (store, other):
            one.shut_down()


class CountedSyncs(FileCalls):
    """Counts the syncs of file data, each of which takes a while."""

    def __init__(self) -> None:
        self.syncs = 0
        self.gate = threading.Event()
        self.waiting = threading.Event()

    def sync_data(self, fd: int) -> None:
        self.syncs += 1
        self.waiting.set()
        self.gate.wait(30)
        super().sync_data(fd)


async def test_what_waits_for_one_rollout_shares_a_sync(tmp_path: Path) -> None:
    calls = CountedSyncs()
    store = TokenCaptureStore(tmp_path, calls=calls)
    first = asyncio.create_task(store.put(entry("first")))
    await asyncio.to_thread(calls.waiting.wait)
    rest = [asyncio.create_task(store.put(entry(f"c{number}"))) for number in range(50)]
    await asyncio.sleep(0)  # each has handed its record over
    calls.gate.set()
    await asyncio.gather(first, *rest)
    assert calls.syncs <= 3
    assert len(store.read_entries("r0")) == 51
    await store.close()


async def test_blocking_work_stays_off_the_loops_own_threads(store: TokenCaptureStore) -> None:
    loop = asyncio.get_running_loop()
    release = threading.Event()
    taken = [loop.run_in_executor(None, release.wait, 30) for _ in range(64)]
    await store.begin_call("r0", "c0")
    await store.put(entry("c0"))
    await store.mark_incomplete("r0", "c1")
    assert await store.has_evidence("r0")
    snapshot = await store.freeze("r0")
    assert await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    release.set()
    await asyncio.gather(*taken)


WRITER = """
import asyncio, sys
from gym_ray.errors import RecordConflictError
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.store import TokenCaptureStore

async def main():
    store, name = TokenCaptureStore(sys.argv[1]), sys.argv[2]
    for number in range(40):
        call_id = f"{name}-{number}"
        await store.begin_call("r0", call_id)
        if number % 10 == 9:
            await store.end_call("r0", call_id, "withdrawn")
        else:
            await store.put(call_entry(call_id, range(50), range(20), rollout_id="r0"))
        await store.put(call_entry("shared", [1], [2], rollout_id="r0"))
    await store.close()

asyncio.run(main())
"""


async def test_three_processes_write_one_rollout(tmp_path: Path, store: TokenCaptureStore) -> None:
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(tmp_path), name) for name in "abc"
    ]
    seen: list[str] = []
    cursor = None
    while any(process.returncode is None for process in processes):
        since = store.read_since("r0", cursor)
        assert not since.restarted
        seen += [one.model_call_id for one in since.entries]
        cursor = since.cursor
        await asyncio.sleep(0.01)
    assert [await process.wait() for process in processes] == [0, 0, 0]
    seen += [one.model_call_id for one in store.read_since("r0", cursor).entries]
    snapshot = await store.freeze("r0")
    expected = {f"{name}-{number}" for name in "abc" for number in range(40) if number % 10 != 9} | {"shared"}
    assert {one.model_call_id for one in snapshot.entries} == expected
    assert (len(seen), set(seen)) == (len(expected), expected)
    assert (snapshot.incomplete, snapshot.version) == (False, len(expected) + 1)


def test_a_process_sees_the_version_that_another_one_moved(tmp_path: Path, store: TokenCaptureStore) -> None:
    store.append(entry("c0"))
    snapshot = asyncio.run(store.freeze("r0"))
    mark = (
        "import asyncio, sys\n"
        "from gym_ray.token_id_capture.store import TokenCaptureStore\n"
        "asyncio.run(TokenCaptureStore(sys.argv[1]).mark_incomplete('r0', 'late'))\n"
    )
    subprocess.run([sys.executable, "-c", mark, str(tmp_path)], check=True, timeout=60)
    assert not asyncio.run(store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version))
    again = asyncio.run(store.freeze("r0"))
    assert (again.incomplete, again.version) == (True, snapshot.version + 1)
