"""Each call of the operating system fails now and then, while two servers append to one rollout: no loss is silent."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.storage.calls import FileCalls, SyncOutcome
from gym_ray.storage.local_calls import LocalFileCalls

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EMFILE, errno.ENOLCK)
FAILING = (
    *("open", "close", "write", "write_at", "pread", "fstat", "stat", "truncate", "allocate", "sync_data", "sync"),
    *("lock_exclusive", "lock_shared", "unlock", "rename", "unlink", "makedirs"),
)
ROLLOUTS, CLIENTS, CALLS = 15, 24, 30


class Unreliable:
    """Lets the calls of a real object fail by chance, once it is told to."""

    def __init__(self, calls: FileCalls, seed: int) -> None:
        self._calls, self._chance = calls, random.Random(seed)
        self.share = 0.0
        self.failed: dict[str, int] = {}
        for name in FAILING:
            setattr(calls, name, self._failing(name, getattr(calls, name)))
        self._sync_all = calls.sync_all
        calls.sync_all = self.sync_all  # type: ignore[method-assign]

    def _fail(self, name: str) -> OSError | None:
        if self._chance.random() >= self.share:
            return None
        self.failed[name] = self.failed.get(name, 0) + 1
        number = self._chance.choice(ERRORS)
        return OSError(number, os.strerror(number))

    def _failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def fail_or_call(*arguments: Any, **options: Any) -> Any:
            error = self._fail(name)
            if error is None:
                return call(*arguments, **options)
            if name == "close":
                call(*arguments)
            elif name == "write" and self._chance.random() < 0.5:
                fd, data = arguments
                return call(fd, memoryview(data)[: max(1, len(data) // 2)])
            raise error

        return fail_or_call

    def sync_all(self, fds: Sequence[int], tell: Callable[[list[SyncOutcome]], None]) -> None:
        """Lose some of the outcomes that are real."""

        def tell_or_fail(outcomes: list[SyncOutcome]) -> None:
            tell([(index, error or self._fail("sync_all")) for index, error in outcomes])

        self._sync_all(fds, tell_or_fail)


async def make_calls(writers: list[CaptureWriter], seed: int) -> dict[str, str]:
    chance, begun = random.Random(seed), dict[str, str]()

    async def client() -> None:
        for _ in range(CALLS):
            writer, rollout_id = chance.choice(writers), f"{chance.randrange(ROLLOUTS)}-0"
            exchange = writer.begin(rollout_id, "chat")
            assert exchange is not None
            begun[exchange.call_id] = rollout_id
            exchange.status, exchange.complete = 200, True
            padding = "x" * chance.choice([1, 100, 5000, 300_000 if chance.random() < 0.05 else 50])
            exchange.request = [json.dumps({"id": exchange.call_id, "padding": padding}).encode()]
            exchange.response = [b'{"choices":[{}]}']
            await writer.commit(exchange)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return begun


def recorded_calls(store: CaptureStore) -> dict[str, str]:
    found: dict[str, str] = {}
    for number in range(ROLLOUTS):
        exchanges, _ = store.read_available(f"{number}-0")
        for _, exchange in exchanges:
            assert exchange["request"]["id"] == exchange["model_call_id"]
            assert exchange["model_call_id"] not in found
            found[exchange["model_call_id"]] = f"{number}-0"
    return found


def check_index(writer: CaptureWriter, store: CaptureStore) -> None:
    for number in range(ROLLOUTS):
        path = store.path_for(f"{number}-0")
        content = path.read_bytes() if path.exists() else b""
        for call in writer._index.recorded_calls(f"{number}-0", lambda rollout_id, _: f"{rollout_id}.capture.jsonl"):
            line = content[call.offset : call.offset + call.length]
            assert line.endswith(b"\n")
            assert json.loads(line)["model_call_id"] == call.call_id


@pytest.mark.parametrize("kind", [FileCalls, LocalFileCalls])
@pytest.mark.parametrize("share", [0.01, 0.2])
async def test_every_call_is_recorded_or_its_rollout_is_marked(
    tmp_path: Path, kind: type[FileCalls], share: float
) -> None:
    writers, faults = [], []
    for number in range(2):
        calls = kind()
        faults.append(Unreliable(calls, seed=number))
        writers.append(CaptureWriter(tmp_path, server_name=f"s{number}", max_handles=4, calls=calls))
        writers[-1].start()
    for fault in faults:
        fault.share = share
    begun = await make_calls(writers, seed=3)
    for fault in faults:
        fault.share = 0.0
    store, marked = CaptureStore(tmp_path), set[str]()
    for writer in writers:
        check_index(writer, store)
        assert not writer._index.open_calls()
        answer = await writer.quiesce([f"{number}-0" for number in range(ROLLOUTS)], 0.0)
        marked |= {rollout_id for rollout_id, told in answer["rollouts"].items() if told["incomplete"]}
    recorded = recorded_calls(store)
    lost = {rollout_id for call_id, rollout_id in begun.items() if recorded.get(call_id) != rollout_id}
    assert lost
    assert all(rollout_id in marked or store.is_incomplete(rollout_id) for rollout_id in lost)
    for writer in writers:
        await asyncio.to_thread(writer.close)
    assert all(store.is_incomplete(rollout_id) for rollout_id in lost)
    if share > 0.1:
        assert {"open", "write", "stat", "lock_exclusive", "unlock"} <= faults[0].failed.keys() | faults[
            1
        ].failed.keys()
