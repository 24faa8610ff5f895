from __future__ import annotations

import asyncio

from gym_ray.rollouts.attempts.waiters import Waiters


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_who_wait_are_woken_one_by_one_or_all() -> None:
    waiters = Waiters()
    tasks = [asyncio.create_task(waiters.wait()) for _ in range(4)]
    await settle()
    waiters.wake_one()
    await settle()
    assert [task.done() for task in tasks] == [True, False, False, False]
    waiters.wake_all()
    await settle()
    assert all(task.done() for task in tasks)
    waiters.wake_one()  # nobody is there


async def test_a_call_is_not_lost_with_the_one_it_woke() -> None:
    waiters = Waiters()
    tasks = [asyncio.create_task(waiters.wait()) for _ in range(3)]
    await settle()
    tasks[0].cancel()
    await settle()
    waiters.wake_one()
    tasks[1].cancel()  # woken, and cancelled before it could look
    await settle()
    assert [task.cancelled() for task in tasks] == [True, True, False]
    assert tasks[2].done()
