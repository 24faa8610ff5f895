from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gym_ray.pace import Pace


async def passed_in_each_turn(tasks: list[asyncio.Task[None]]) -> list[int]:
    """Return how many of the tasks ended in each turn of the loop."""
    ended, before = [], 0
    while before < len(tasks):
        await asyncio.sleep(0)
        now = sum(task.done() for task in tasks)
        if now != before:
            ended.append(now - before)
        before = now
    return ended


async def test_a_burst_passes_a_few_at_a_time_in_order() -> None:
    pace, order = Pace(16), []

    async def step(number: int) -> None:
        await pace.turn()
        order.append(number)

    counts = await passed_in_each_turn([asyncio.create_task(step(n)) for n in range(200)])
    assert sum(counts) == 200
    assert max(counts) <= 2 * 16  # those that pass at once, and those let in for the same turn
    assert order == sorted(order)


async def test_a_single_task_does_not_wait() -> None:
    pace = Pace(2)
    for _ in range(5):
        coroutine = pace.turn()
        with pytest.raises(StopIteration):
            coroutine.send(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_one_that_is_cancelled_while_it_waits_takes_nobodys_place() -> None:
    pace = Pace(1)
    tasks = [asyncio.create_task(pace.turn()) for _ in range(10)]
    await asyncio.sleep(0)
    for task in tasks[1:9]:
        task.cancel()
    await asyncio.wait_for(tasks[9], 5)
    assert [task.cancelled() for task in tasks] == [False] + [True] * 8 + [False]


async def test_nothing_is_scheduled_once_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, loop = Pace(4), asyncio.get_running_loop()
    await asyncio.gather(*(pace.turn() for _ in range(20)))
    for _ in range(4):
        await asyncio.sleep(0)
    scheduled, call_soon = [], loop.call_soon

    def noting(callback: Any, *args: Any, **kwargs: Any) -> asyncio.Handle:
        scheduled.append(callback)
        return call_soon(callback, *args, **kwargs)

    monkeypatch.setattr(loop, "call_soon", noting)
    for _ in range(4):
        await asyncio.sleep(0)
    assert not [callback for callback in scheduled if getattr(callback, "__self__", None) is pace]
    for _ in range(3):
        await pace.turn()
    assert not [callback for callback in scheduled if getattr(callback, "__self__", None) is pace]
    await pace.turn()  # the last place of this turn
    assert [callback for callback in scheduled if getattr(callback, "__self__", None) is pace]


async def test_places_that_are_left_are_not_more_in_a_later_turn() -> None:
    pace = Pace(4)
    for _ in range(3):
        await pace.turn()
    for _ in range(4):
        await asyncio.sleep(0)
    counts = await passed_in_each_turn([asyncio.create_task(pace.turn()) for _ in range(20)])
    assert sum(counts) == 20
    assert max(counts) <= 2 * 4


def test_a_pace_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="a_turn: 0"):
        Pace(0)
