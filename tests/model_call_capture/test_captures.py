"""Writers of a directory whose logs are on other machines: only their answers tell whether they live."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gym_ray.model_call_capture.captures import FileCaptures
from gym_ray.model_call_capture.heard_writers import DEAD_AFTER_S, GRACE_S
from gym_ray.model_call_capture.reading_clock import ReadingClock
from gym_ray.model_call_capture.registry import RegisteredWriter, WriterRegistry

WRITER = "s-1"


@dataclass
class Writer:
    """One writer without a log here, what it was asked, and the time."""

    answers: bool = True
    asked: int = 0
    now: float = 1000.0

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        if not self.answers:
            raise httpx.ConnectError("nobody there", request=request)
        names = json.loads(request.content)["rollout_ids"]
        entries = {name: {"recorded": [], "open": [], "incomplete": False} for name in names}
        return httpx.Response(200, json={"writer_id": WRITER, "rollouts": entries})


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.fixture
def captures(tmp_path: Path, writer: Writer) -> FileCaptures:
    WriterRegistry(tmp_path).add(RegisteredWriter(WRITER, "s", None, "http://s:1", None, "elsewhere", 1))
    return FileCaptures(tmp_path, clock=ReadingClock(lambda: writer.now, lambda: writer.now))


async def unreachable(captures: FileCaptures, writer: Writer, begun_at: float | None) -> tuple[str, ...]:
    async with writer.client() as client:
        calls = await captures.written_calls(["0-0"], client=client, timeout_s=1, begun_at=begun_at)
    return calls["0-0"].unreachable_writers


async def test_a_writer_that_stays_silent_is_doubted_by_the_attempts_that_may_have_used_it(
    captures: FileCaptures, writer: Writer
) -> None:
    assert await unreachable(captures, writer, writer.now) == ()
    writer.answers = False
    assert await unreachable(captures, writer, writer.now) == (WRITER,)
    writer.now += DEAD_AFTER_S
    declared_at = writer.now
    assert await unreachable(captures, writer, declared_at - 10) == (WRITER,)
    asked = writer.asked
    writer.now += GRACE_S + 1
    assert await unreachable(captures, writer, declared_at + GRACE_S) == ()
    assert await unreachable(captures, writer, declared_at + GRACE_S - 1) == (WRITER,)
    assert await unreachable(captures, writer, None) == (WRITER,), "nobody knows when that attempt began"
    assert writer.asked == asked + 1, "one that was declared dead is asked now and then"
    async with writer.client() as client:
        assert await captures.forget(["0-0"], client=client) == ()
    assert writer.asked == asked + 1


async def test_a_writer_that_was_declared_dead_lives_again_when_it_answers(
    captures: FileCaptures, writer: Writer, tmp_path: Path
) -> None:
    writer.answers = False
    for _ in range(2):
        assert await unreachable(captures, writer, writer.now) == (WRITER,)
        writer.now += DEAD_AFTER_S
    dead = tmp_path / ".gym-ray" / "dead" / f"{WRITER}.json"
    assert await unreachable(captures, writer, writer.now) == (WRITER,)
    assert dead.is_file()
    assert dead.stat().st_mode & 0o077 == 0
    writer.answers = True
    writer.now += GRACE_S + 1
    assert await unreachable(captures, writer, writer.now) == ()
    assert not dead.exists()
    writer.answers = False
    assert await unreachable(captures, writer, writer.now) == (WRITER,), "it may have calls again"


async def test_what_one_reader_declared_all_others_know(captures: FileCaptures, writer: Writer, tmp_path: Path) -> None:
    writer.answers = False
    for _ in range(2):
        await unreachable(captures, writer, None)
        writer.now += DEAD_AFTER_S
    other = FileCaptures(tmp_path, clock=ReadingClock(lambda: writer.now, lambda: writer.now))
    assert await unreachable(other, writer, writer.now + GRACE_S) == ()


async def test_a_reader_that_asks_once_cannot_tell_silence_from_death(captures: FileCaptures, writer: Writer) -> None:
    writer.answers = False
    assert await unreachable(captures, writer, writer.now + 10**6) == (WRITER,)
