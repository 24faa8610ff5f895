from __future__ import annotations

import asyncio
import contextlib

import pytest

from gym_ray.rollouts.attempts.byte_budget import ByteBudget


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Holder:
    """Holds its bytes until told to let go."""

    def __init__(self, budget: ByteBudget, size: int) -> None:
        self.inside, self._go = False, asyncio.Event()
        self.task = asyncio.create_task(self._hold(budget, size))

    async def _hold(self, budget: ByteBudget, size: int) -> None:
        async with budget.holding(size):
            self.inside = True
            await self._go.wait()
        self.inside = False

    def let_go(self) -> None:
        self._go.set()


async def test_holders_come_in_as_long_as_they_fit_and_in_their_order() -> None:
    budget = ByteBudget(10)
    holders = [Holder(budget, size) for size in (6, 5, 3)]
    await settle()
    assert [holder.inside for holder in holders] == [True, False, False], "the third fits, but it is not its turn"
    holders[0].let_go()
    await settle()
    assert [holder.inside for holder in holders] == [False, True, True]
    assert budget.held_bytes == 8
    for holder in holders:
        holder.let_go()
    await settle()
    assert budget.held_bytes == 0


async def test_one_that_is_larger_than_everything_comes_in_alone() -> None:
    budget = ByteBudget(10)
    small, large = Holder(budget, 1), Holder(budget, 100)
    await settle()
    assert (small.inside, large.inside) == (True, False)
    small.let_go()
    await settle()
    assert large.inside
    large.let_go()
    await large.task


@pytest.mark.parametrize("let_in", [False, True])
async def test_one_that_is_cancelled_while_it_waits_holds_nothing(let_in: bool) -> None:
    budget = ByteBudget(10)
    first, second, third = Holder(budget, 10), Holder(budget, 10), Holder(budget, 4)
    await settle()
    if let_in:  # at the very moment of its turn
        first.let_go()
        await asyncio.sleep(0)
    second.task.cancel()
    first.let_go()
    with contextlib.suppress(asyncio.CancelledError):
        await second.task
    await settle()
    assert third.inside
    assert budget.held_bytes == 4
    third.let_go()
    await third.task
    assert budget.held_bytes == 0
