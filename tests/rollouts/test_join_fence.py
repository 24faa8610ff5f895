"""Joiners that are cut off, or live on after their node was given up, beside those that were asked again."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import ClusterError, StorageError
from gym_ray.evidence.build import JoinOptions
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.rollouts.joining import Joiner
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest, Lost
from gym_ray.rollouts.run_files.revoked_tries import JoinTry
from gym_ray.rollouts.run_paths import OutputMark
from gym_ray.testing.begun_run import BegunRun
from gym_ray.testing.fake_rollouts import FakePort, answer

START = JoinRequest(OutputMark(0, 0))
AGAIN = JoinRequest(OutputMark(0, 0), retry=True, number=2)
OBSERVED = {
    "source": "s",
    "records": [{"kind": "agent_invocation", "invocation_id": "root", "model_calls": [{"model_call_id": "c0"}]}],
}
REPLY = RunResult(json.dumps({"reward": 1.0, "ng_agent_observations": OBSERVED}).encode(), None, 7.0)
FAILURE = RunResult(None, RunFailure("agent_run_error", "E", "it broke"), 7.0)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[BegunRun]:
    found = BegunRun(tmp_path, 2)
    yield found
    found.close()


def job(run: BegunRun, ordinal: int = 0) -> AttemptJob:
    row = run.rows.attempt(ordinal, 0)
    return AttemptJob(ordinal, 0, row.rollout_id, row.agent, row.data)


class CutOff(httpx.AsyncBaseTransport):
    """The way of a joiner to the model servers: nothing comes through until it is mended."""

    def __init__(self) -> None:
        self.waits, self.mended = asyncio.Event(), asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.waits.set()
        await self.mended.wait()
        raise httpx.ConnectError("still nobody there", request=request)


def lines(run: BegunRun) -> list[bytes]:
    return [*run.paths.output.read_bytes().splitlines(), *run.paths.failures.read_bytes().splitlines()]


def facts(run: BegunRun) -> int:
    return sum(path.read_bytes().count(b"\n") for path in run.paths.facts.glob("*"))


@pytest.mark.parametrize("result", [REPLY, FAILURE], ids=["output", "failures"])
@pytest.mark.parametrize("came_first", [False, True], ids=["cut off before it stored", "cut off when it had stored"])
async def test_a_joiner_that_was_cut_off_stores_what_is_found_or_nothing(
    run: BegunRun, tmp_path: Path, result: RunResult, came_first: bool
) -> None:
    captures = tmp_path / "captures"
    captures.mkdir()
    server = CaptureWriter(captures, server_name="policy_model", url="http://model", run_token="t")
    server.start()
    way, options = CutOff(), JoinOptions(compact=True)
    place = CaptureLocation.of(captures)
    async with httpx.AsyncClient(transport=way) as client:
        zombie = Joiner(run.paths, place, client=client, options=options, quiesce_timeout_s=600.0)
        other = Joiner(run.paths, None, options=options)
        first = asyncio.create_task(zombie.join(job(run), result, START))
        await asyncio.wait_for(way.waits.wait(), 30)
        if came_first:
            way.mended.set()
            await asyncio.wait_for(first, 30)
        run.outputs.revoke(JoinTry("0-0", 1))
        outcome = await other.join(job(run), result, AGAIN)
        stored = lines(run)
        sources, parts = run.paths.sources.read_bytes(), sorted(run.paths.parts.glob("*"))
        if not came_first:
            way.mended.set()
            with pytest.raises(StorageError, match="0-0: try 1 of its join was called back"):
                await asyncio.wait_for(first, 30)
        assert len(stored) == 1
        assert lines(run) == stored
        assert (run.paths.sources.read_bytes(), sorted(run.paths.parts.glob("*"))) == (sources, parts)
        await asyncio.gather(zombie.aclose(), other.aclose())
    assert outcome.written is not None
    assert outcome.written.length == len(stored[0]) + 1
    assert facts(run) == 1
    await asyncio.to_thread(server.close)


class Zombies(FakePort):
    """Joins each attempt in a joiner that is given up and lives on; it goes on when the attempt is joined again."""

    def __init__(self, run: BegunRun, *, before: bool) -> None:
        super().__init__(run.outputs)
        self._before, self._own = before, [Joiner(run.paths, None) for _ in range(2)]
        self.late: list[Any] = []

    async def join(self, job: AttemptJob, result: Any, request: JoinRequest) -> JoinOutcome | Lost:
        value = getattr(result, "value", result)
        if request.number == 1:
            first = self._own[0].join(job, value, request)
            if self._before:
                await first
            else:
                self.late.append(first)
            raise ClusterError("no word from the joiner")
        outcome = await self._own[1].join(job, value, request)
        for first in self.late:
            with pytest.raises(StorageError, match="called back"):
                await first
        self.late.clear()
        return outcome

    async def aclose(self) -> None:
        for joiner in self._own:
            await joiner.aclose()


@pytest.mark.parametrize("before", [False, True], ids=["stored after", "stored before"])
async def test_a_collection_calls_a_join_back_before_it_asks_again(run: BegunRun, before: bool) -> None:
    port = Zombies(run, before=before)
    progress = await run.collection(port).run()
    await port.aclose()
    assert progress.done == 2
    assert sorted(run.records()) == ["0-0", "1-0"]
    assert len(lines(run)) == 2


async def test_tries_are_numbered_and_the_first_one_calls_nothing_back(run: BegunRun) -> None:
    failing = 3

    async def fail(job: AttemptJob, request: JoinRequest) -> None:
        if job.ordinal == 0 and request.number <= failing:
            raise ClusterError("the joiner died")

    port = FakePort(run.outputs, join_script=fail)
    await run.collection(port).run()
    numbers = [(name, request.number, request.retry) for name, request in port.requests]
    assert sorted(numbers) == [
        *(("0-0", number, number > 1) for number in range(1, failing + 2)),
        ("1-0", 1, False),
    ]
    (revoked,) = run.paths.revoked.iterdir()
    said = [json.loads(line) for line in revoked.read_bytes().splitlines()]
    assert said == [{"rollout_id": "0-0", "number": number} for number in range(1, failing + 1)]


async def test_nobody_is_asked_again_while_the_earlier_try_cannot_be_called_back(
    run: BegunRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(one: JoinTry) -> None:
        raise StorageError(f"a join of {one.rollout_id} cannot be called back: No space left on device")

    async def fail(job: AttemptJob, request: JoinRequest) -> None:
        raise ClusterError("the joiner died")

    monkeypatch.setattr(run.outputs, "revoke", full)
    port = FakePort(run.outputs, join_script=fail, capacity=1)
    with pytest.raises(StorageError, match="a join of 0-0 cannot be called back: No space left"):
        await run.collection(port).run()
    assert [request.number for name, request in port.requests if name == "0-0"] == [1]
    assert lines(run) == []


async def test_a_reply_that_is_lost_behind_its_record_gives_no_second_one(run: BegunRun) -> None:
    async def lose(job: AttemptJob, request: JoinRequest) -> Lost | None:
        if job.ordinal == 0 and request.number == 1:  # stored, but what the joiner answered went with its node
            stored = FakePort(run.outputs)
            await stored.join(job, await answer(job), dataclasses.replace(request))
            return Lost("node_lost", "gone with its node")
        return None

    progress = await run.collection(FakePort(run.outputs, join_script=lose)).run()
    assert sorted(run.records()) == ["0-0", "1-0"]
    assert progress.done == 2
    assert len(lines(run)) == 2
