"""Answers that are ready in the same moment: they begin, are handed over and end a few in each turn of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gym_ray.model_call_capture import middleware as middleware_module
from gym_ray.model_call_capture.exchanges.exchange import Exchange
from gym_ray.model_call_capture.middleware import CaptureMiddleware
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.pace import Pace
from gym_ray.testing.loop_turns import LoopTurns
from gym_ray.testing.waiting import until

ANSWER = b'{"id":"c1","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}'
FRAMES = [b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n', b"data: [DONE]\n\n"]
BURST, A_TURN = 200, 16


class Burst:
    """Calls of a middleware on one loop whose answers, or the ends of whose streams, are ready at the same moment."""

    def __init__(self, writer: CaptureWriter, *, sse: bool = False, first: int = 0) -> None:
        self.middleware = CaptureMiddleware(self._app, writer)
        self.turns = LoopTurns()
        self.open = asyncio.Event()
        self.waiting = 0
        self.sent: dict[str, list[bytes]] = {}
        self._type, self._pieces = (b"text/event-stream", FRAMES) if sse else (b"application/json", [ANSWER])
        self._sse, self._first = sse, first

    async def _app(self, _scope: Any, receive: Any, send: Any) -> None:
        await receive()
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", self._type)]}
        if self._sse:
            await send(start)
        self.waiting += 1
        await self.open.wait()
        if not self._sse:
            await send(start)
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def call(self, number: int) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.turns.note("begun")
            elif not message["more_body"]:
                self.turns.note("ended")
            self.sent.setdefault(path, []).append(message.get("body", b""))

        path = f"/ng-rollout/{self._first + number}-0/v1/chat/completions"
        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        await self.middleware(scope, receive, send)  # type: ignore[arg-type]

    async def tasks(self, count: int = BURST) -> list[asyncio.Task[None]]:
        """Begin so many calls, and return them when all are ready to answer."""
        tasks = [asyncio.create_task(self.call(number)) for number in range(count)]
        await until(lambda: self.waiting == count)
        return tasks

    async def answered(self) -> None:
        """Let all calls answer, and return when they have."""
        with self.turns:
            tasks = await self.tasks()
            self.open.set()
            async with asyncio.timeout(60):
                await asyncio.gather(*tasks)


@pytest.fixture
def handed_over(writer: CaptureWriter, monkeypatch: pytest.MonkeyPatch) -> Callable[[Burst], None]:
    def watch(burst: Burst) -> None:
        submit = writer.submit

        def noting(exchange: Exchange) -> asyncio.Future[None]:
            burst.turns.note("handed over")
            return submit(exchange)

        monkeypatch.setattr(writer, "submit", noting)

    return watch


@pytest.mark.parametrize("sse", [False, True])
async def test_answers_that_are_ready_together_pass_a_few_in_each_turn(
    writer: CaptureWriter, handed_over: Callable[[Burst], None], sse: bool
) -> None:
    burst = Burst(writer, sse=sse)
    handed_over(burst)
    await burst.answered()
    for what in ("begun", "handed over", "ended"):
        assert burst.turns.total(what) == BURST
        assert burst.turns.most(what) <= 3 * A_TURN, what
    expected = [b"", *(FRAMES if sse else [ANSWER]), b""]
    assert set(map(tuple, burst.sent.values())) == {tuple(expected)}
    assert writer.counts.recorded == BURST


def test_several_loops_serve_one_writer_at_the_same_time(writer: CaptureWriter) -> None:
    failed: list[BaseException] = []

    async def serve(first: int) -> None:
        await Burst(writer, first=first).answered()

    def run(first: int) -> None:
        try:
            asyncio.run(serve(first))
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number * BURST,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert writer.counts.recorded == 3 * BURST


def test_one_middleware_serves_several_loops_one_after_the_other(writer: CaptureWriter) -> None:
    middlewares = []

    async def serve() -> None:
        burst = Burst(writer)
        if middlewares:
            middlewares[0]._app = burst.middleware._app
            burst.middleware = middlewares[0]
        middlewares.append(burst.middleware)
        await burst.answered()

    asyncio.run(serve())
    asyncio.run(serve())
    assert writer.counts.recorded == 2 * BURST


async def test_a_call_that_is_cancelled_before_it_is_handed_over_is_recorded(
    writer: CaptureWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client is gone, and its answer was complete (A50)."""
    at_end, go_on, passed = asyncio.Event(), asyncio.Event(), []

    class Closed(Pace):
        async def turn(self) -> None:
            passed.append(self)
            if len(passed) == 2:  # the first is where the answer begins
                at_end.set()
                await go_on.wait()

    monkeypatch.setattr(middleware_module, "Pace", Closed)
    burst = Burst(writer)
    burst.open.set()
    (task,) = await burst.tasks(1)
    await asyncio.wait_for(at_end.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: writer.counts.recorded == 1)
    (record,) = writer.store.read("0-0")
    assert record["error_category"] is None
    assert record["response"]["id"] == "c1"
    assert burst.sent == {"/ng-rollout/0-0/v1/chat/completions": [b""]}
    assert passed[0] is not passed[1]


async def test_a_call_that_is_cancelled_before_it_begins_is_recorded_as_cancelled(writer: CaptureWriter) -> None:
    burst = Burst(writer)
    tasks = await burst.tasks()
    burst.open.set()
    await asyncio.sleep(0)  # all have come to where answers begin
    tasks[-1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [False] * (BURST - 1) + [True]
    await until(lambda: writer.counts.recorded == BURST)
    (record,) = writer.store.read(f"{BURST - 1}-0")
    assert record["error_category"] == "cancelled"
    assert len(burst.sent) == BURST - 1
