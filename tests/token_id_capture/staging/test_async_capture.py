"""Completions on an event loop: so many at once, each for a bounded time, and told once what became of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gym_ray.errors import CaptureError, StreamingUnsupportedError
from gym_ray.testing.staged_chains import KeepingSink
from gym_ray.testing.waiting import until
from gym_ray.token_id_capture.adapters import VLLMCaptureAdapter
from gym_ray.token_id_capture.staging import (
    ActiveCall,
    AsyncRolloutTokenCapture,
    CaptureAdmission,
    RolloutTokenCapture,
    StagedCallRecord,
    StageResult,
)

TOKENS: dict[str, Any] = {"prompt_token_ids": [1, 2], "generated_token_ids": [3], "generated_logprobs": [-0.5]}
GOOD = {"prompt_token_ids": [1, 2], "choices": [{"message": {"generation_token_ids": [3]}}]}
GOOD["choices"][0]["message"]["generation_log_probs"] = [-0.5]  # type: ignore[index]


class Gate(KeepingSink):
    """A sink that answers when it is opened; counts how many are inside."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.lock = threading.Lock()
        self.inside = self.most = 0
        self.answer: Any = None

    def stage(self, record: StagedCallRecord, *, attachments: Any = None) -> StageResult:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            assert self.open.wait(30)
            if self.answer is not None:
                raise self.answer
            return super().stage(record, attachments=attachments)
        finally:
            with self.lock:
                self.inside -= 1


def begin(capture: AsyncRolloutTokenCapture, number: int = 0) -> ActiveCall:
    return capture.begin_call(CaptureAdmission(rollout_id="r0", model_call_id=f"c{number}", mode="text"))


@asynccontextmanager
async def captures(sink: Any, **bounds: Any) -> AsyncIterator[AsyncRolloutTokenCapture]:
    capture = AsyncRolloutTokenCapture(RolloutTokenCapture(sink, lambda: 1, VLLMCaptureAdapter()), **bounds)
    try:
        yield capture
    finally:
        if isinstance(sink, Gate):
            sink.open.set()
        assert await capture.aclose(30) == 0


async def test_a_call_is_staged_and_acknowledged() -> None:
    sink, media = KeepingSink(), {"pixels": object()}
    async with captures(sink) as capture:
        assert (await capture.complete_call(begin(capture), **TOKENS)).disposition == "staged"
        coords = await capture.complete_call_from_response(begin(capture, 1), GOOD, attachments=media)
        assert (coords.disposition, coords.staging_key) == ("staged", "r0/c1")
        assert (await capture.fail_call(begin(capture, 2), reason="aborted")).disposition == "capture_failed"
        assert capture.refuse(begin(capture, 3).admission, reason="no prefix").disposition == "capture_failed"
        assert capture.failures["failed_by_caller"] == 2
    assert sink.attachments == [None, media]
    assert sink.attachments[1] is media


async def test_mistakes_of_the_caller_are_raised_and_use_nothing_up() -> None:
    async with captures(KeepingSink()) as capture:
        with pytest.raises(StreamingUnsupportedError):
            capture.begin_call(begin(capture).admission, stream=True)
        call = begin(capture)
        bare = AsyncRolloutTokenCapture(RolloutTokenCapture(KeepingSink(), lambda: 1))
        with pytest.raises(CaptureError, match="no adapter"):
            await bare.complete_call_from_response(call, GOOD)
        assert not call.completed
        assert (await capture.complete_call(call, **TOKENS)).disposition == "staged"
        for again in (capture.complete_call(call, **TOKENS), capture.fail_call(call, reason="late")):
            with pytest.raises(CaptureError, match="completed before"):
                await again


async def test_sixteen_tasks_that_race_have_one_winner() -> None:
    sink = KeepingSink()
    async with captures(sink) as capture:
        call = begin(capture)
        done = await asyncio.gather(*(capture.complete_call(call, **TOKENS) for _ in range(16)), return_exceptions=True)
    assert Counter(type(one).__name__ for one in done) == {"CommitCoords": 1, "CaptureError": 15}
    assert len(sink.records) == 1


async def test_no_more_than_so_many_are_in_the_sink_at_once() -> None:
    gate = Gate()
    async with captures(gate, max_concurrent=3) as capture:
        tasks = [asyncio.create_task(capture.complete_call(begin(capture, at), **TOKENS)) for at in range(12)]
        await until(lambda: gate.inside == 3)
        assert capture.running == 3
        gate.open.set()
        coords = await asyncio.gather(*tasks)
    assert gate.most == 3
    assert {one.disposition for one in coords} == {"staged"}


async def test_a_sink_that_hangs_is_a_failed_capture_and_its_late_success_an_orphan(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate()
    async with captures(gate, timeout_s=0.05) as capture:
        call = begin(capture)
        coords = await capture.complete_call(call, **TOKENS)
        assert (coords.disposition, coords.staging_key) == ("capture_failed", None)
        assert capture.failures["deadline"] == 1
        assert "call c0 is not captured (deadline): it was not staged within 0.05 s" in caplog.text
        with pytest.raises(CaptureError, match="completed before"):
            await capture.fail_call(call, reason="again")
        assert (capture.orphans, capture.running) == (0, 1)
        gate.open.set()
        await until(lambda: capture.orphans == 1)
    assert [record.model_call_id for record in gate.records] == ["c0"]
    assert "call c0 was staged as r0/c0 after its caller had stopped waiting" in caplog.text
    assert sum(capture.failures.values()) == 1


@pytest.mark.parametrize("answer", [OSError("disk full"), KeyboardInterrupt()])
async def test_a_late_failure_is_no_orphan(answer: BaseException) -> None:
    gate = Gate()
    async with captures(gate, timeout_s=0.05) as capture:
        assert (await capture.complete_call(begin(capture), **TOKENS)).disposition == "capture_failed"
        gate.answer = answer
        gate.open.set()
        await until(lambda: capture.running == 0)
        assert capture.orphans == 0


async def test_calls_that_wait_for_a_hanging_sink_end_in_time_as_well() -> None:
    gate = Gate()
    async with captures(gate, max_concurrent=2, timeout_s=0.05) as capture:
        coords = await asyncio.gather(*(capture.complete_call(begin(capture, at), **TOKENS) for at in range(8)))
        assert {one.disposition for one in coords} == {"capture_failed"}
        assert capture.failures["deadline"] == 8
        assert capture.running == 2
        gate.open.set()
        await until(lambda: capture.running == 0)
        capture._timeout_s = 30.0  # a busy machine may not stage one within the bound of the others
        assert (await capture.complete_call(begin(capture, 8), **TOKENS)).disposition == "staged"
    assert capture.orphans == 2
    assert gate.most == 2


async def test_a_caller_that_is_cancelled_leaves_an_orphan() -> None:
    gate = Gate()
    async with captures(gate, max_concurrent=1, timeout_s=None) as capture:
        running = asyncio.create_task(capture.complete_call(begin(capture), **TOKENS))
        await until(lambda: gate.inside == 1)
        waiting = asyncio.create_task(capture.complete_call(begin(capture, 1), **TOKENS))
        await asyncio.sleep(0)
        for task in (running, waiting):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert capture.failures["failed_by_caller"] == 2
        gate.open.set()
        await until(lambda: capture.orphans == 1)
        assert (await capture.complete_call(begin(capture, 2), **TOKENS)).disposition == "staged"
    assert [record.model_call_id for record in gate.records] == ["c0", "c2"]


async def test_a_caller_that_is_cancelled_before_it_hears_of_its_success_leaves_an_orphan() -> None:
    sink = Gate()
    async with captures(sink) as capture:
        waiting = asyncio.create_task(capture.complete_call(begin(capture), **TOKENS))
        await until(lambda: sink.inside == 1)
        sink.open.set()
        done_by = time.monotonic() + 30
        while capture.running:  # the loop is held here, so that the task does not wake between the answer and its end
            assert time.monotonic() < done_by
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (capture.orphans, capture.failures["failed_by_caller"]) == (1, 1)


async def test_what_ends_a_process_is_raised_where_the_call_is_awaited() -> None:
    class Ending(BaseException):
        pass

    gate = Gate()
    gate.answer = Ending("now")
    gate.open.set()
    async with captures(gate) as capture:
        with pytest.raises(Ending, match="now"):
            await capture.complete_call(begin(capture), **TOKENS)
        gate.answer = None
        assert (await capture.complete_call(begin(capture, 1), **TOKENS)).disposition == "staged"


async def test_a_closed_capture_takes_no_calls_and_says_what_still_runs() -> None:
    gate = Gate()
    async with captures(gate, timeout_s=0.05) as capture:
        await capture.complete_call(begin(capture), **TOKENS)
        assert await capture.aclose(0.01) == 1
        call = begin(capture, 1)
        with pytest.raises(CaptureError, match="capture is closed"):
            await capture.complete_call(call, **TOKENS)
        assert not call.completed


async def test_calls_that_wait_when_it_is_closed_are_staged_first() -> None:
    gate = Gate()
    async with captures(gate, max_concurrent=1) as capture:
        tasks = [asyncio.create_task(capture.complete_call(begin(capture, at), **TOKENS)) for at in range(5)]
        await until(lambda: gate.inside == 1)
        closing = asyncio.create_task(capture.aclose())
        await until(lambda: capture._closed)
        assert not closing.done()
        gate.open.set()
        assert await closing == 0
        assert len(gate.records) == 5
        assert {(await task).disposition for task in tasks} == {"staged"}


def test_a_sink_that_answers_behind_its_event_loop_is_an_orphan() -> None:
    gate = Gate()
    capture = AsyncRolloutTokenCapture(RolloutTokenCapture(gate, lambda: 1), timeout_s=0.05)

    async def give_up() -> None:
        assert (await capture.complete_call(begin(capture), **TOKENS)).disposition == "capture_failed"

    asyncio.run(give_up())
    gate.open.set()
    assert asyncio.run(capture.aclose(30)) == 0
    assert capture.orphans == 1


async def test_a_system_without_threads_costs_the_capture_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with captures(KeepingSink(), max_concurrent=1) as capture:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert (await capture.complete_call(begin(capture), **TOKENS)).disposition == "capture_failed"
        assert capture.failures["unexpected"] == 1
        assert capture.running == 0
        assert (await capture.complete_call(begin(capture, 1), **TOKENS)).disposition == "staged"


@pytest.mark.parametrize("bounds", [{"max_concurrent": 0}, {"timeout_s": 0}, {"timeout_s": -1}])
def test_bounds_are_positive(bounds: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        AsyncRolloutTokenCapture(RolloutTokenCapture(KeepingSink(), lambda: 1), **bounds)


async def test_a_deadline_is_told_with_the_time_that_was_set() -> None:
    told: list[tuple[str, str, str]] = []
    gate = Gate()
    inner = RolloutTokenCapture(gate, lambda: 1, on_failure=lambda who, *why: told.append((who.model_call_id, *why)))
    capture = AsyncRolloutTokenCapture(inner, timeout_s=0.05)
    coords = await capture.complete_call(begin(capture), **TOKENS)
    gate.open.set()
    assert await capture.aclose(30) == 0
    assert coords.disposition == "capture_failed"
    assert told == [("c0", "deadline", "it was not staged within 0.05 s")]
