from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from gym_ray.errors import StorageError
from gym_ray.rollouts.joined_word import JoinedWord


class _Writers:
    """Captures whose writers answer when they are let; each answer is taken from ``answers``, none is fine."""

    def __init__(self, *answers: tuple[str, ...] | Exception) -> None:
        self.rounds: list[list[str]] = []
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self._answers = iter(answers)

    async def forget(self, rollout_ids: Sequence[str], *, withdraw_open: bool, **_: object) -> tuple[str, ...]:
        assert not withdraw_open
        self.rounds.append(list(rollout_ids))
        self.asked.set()
        await self.go_on.wait()
        answer = next(self._answers, ())
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_rollouts_that_come_during_a_round_are_told_together_in_the_next_one() -> None:
    writers: Any = _Writers()
    async with httpx.AsyncClient() as client:
        word = JoinedWord(writers, client)
        waiting = [asyncio.create_task(word.tell("0-0"))]
        await writers.asked.wait()
        waiting += [asyncio.create_task(word.tell(f"{number}-0")) for number in (1, 2, 3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        waiting[2].cancel()
        writers.go_on.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        await word.aclose()
    assert writers.rounds == [["0-0"], ["1-0", "2-0", "3-0"]]
    assert [task.cancelled() for task in waiting] == [False, False, True, False]


async def test_writers_that_cannot_be_told_are_logged_and_the_next_round_is_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writers: Any = _Writers(("server-1",), StorageError("the writers cannot be listed"))
    writers.go_on.set()
    async with httpx.AsyncClient() as client:
        word = JoinedWord(writers, client)
        with caplog.at_level(logging.WARNING):
            for number in range(3):
                await word.tell(f"{number}-0")
        await word.aclose()
    assert len(writers.rounds) == 3
    assert [record.message for record in caplog.records] == [
        "0-0: not told that they are joined: server-1",
        "1-0: not told that they are joined: the writers cannot be listed",
    ]


async def test_a_round_that_breaks_ends_all_that_wait_for_it_and_no_other() -> None:
    writers: Any = _Writers((), RuntimeError("the client was closed"))
    async with httpx.AsyncClient() as client:
        word = JoinedWord(writers, client)
        waiting = [asyncio.create_task(word.tell("0-0"))]
        await writers.asked.wait()
        waiting += [asyncio.create_task(word.tell(f"{number}-0")) for number in (1, 2)]
        await asyncio.sleep(0)
        writers.go_on.set()
        async with asyncio.timeout(30):
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            await word.tell("3-0")
        await word.aclose()
    assert [str(item) for item in ended] == ["None", "the client was closed", "the client was closed"]
    assert writers.rounds == [["0-0"], ["1-0", "2-0"], ["3-0"]]
