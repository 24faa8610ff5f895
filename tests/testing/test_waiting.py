from __future__ import annotations

import asyncio

import pytest

from gym_ray.testing.waiting import until


async def test_it_returns_once_the_condition_holds() -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(done.set)
    await until(done.is_set, pause_s=0)
    assert done.is_set()


async def test_a_condition_that_never_holds_is_an_error() -> None:
    with pytest.raises(TimeoutError):
        await until(lambda: False, timeout_s=0.01)
