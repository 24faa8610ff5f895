from __future__ import annotations

import asyncio

import pytest

from gym_ray.token_id_capture.bounded_calls import BoundedCalls

DEADLINE_S = 10.0


async def test_a_call_that_heeds_no_cancellation_is_let_go_and_kept_until_it_ends() -> None:
    released, ended = asyncio.Event(), []

    async def stubborn() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        ended.append(True)

    bounded = BoundedCalls(0.01)
    with pytest.raises(TimeoutError, match=r"put of the token sink did not end within 0\.01 s"):
        await bounded.run(stubborn(), "put of the token sink")
    await bounded.aclose(0.01)
    assert ended == []
    released.set()
    await bounded.aclose(DEADLINE_S)
    assert ended == [True]


async def test_a_call_returns_or_raises_what_its_sink_does() -> None:
    async def returns() -> int:
        return 5

    async def raises() -> int:
        raise KeyError("x")

    for timeout_s in (None, DEADLINE_S):
        bounded = BoundedCalls(timeout_s)
        assert await bounded.run(returns(), "it") == 5
        with pytest.raises(KeyError):
            await bounded.run(raises(), "it")


async def test_who_is_cancelled_cancels_the_call() -> None:
    reached, cancelled = asyncio.Event(), []

    async def waits() -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    bounded = BoundedCalls(DEADLINE_S)
    task = asyncio.create_task(bounded.run(waits(), "it"))
    await asyncio.wait_for(reached.wait(), DEADLINE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await bounded.aclose(DEADLINE_S)
    assert cancelled == [True]
