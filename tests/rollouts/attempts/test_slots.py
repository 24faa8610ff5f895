from __future__ import annotations

import asyncio

import pytest

from gym_ray.rollouts.attempts.slots import Slots


class Holders:
    """Tasks that hold a place until they are told to leave, in the order in which they were let in."""

    def __init__(self, slots: Slots, names: str) -> None:
        self.slots, self.entered, self.leave = slots, [], {name: asyncio.Event() for name in names}
        self.tasks = {name: asyncio.create_task(self._hold(name)) for name in names}

    async def _hold(self, name: str) -> None:
        async with self.slots:
            self.entered.append(name)
            await self.leave[name].wait()

    async def settle(self) -> str:
        for _ in range(10):
            await asyncio.sleep(0)
        return "".join(self.entered)

    async def end(self) -> None:
        for event in self.leave.values():
            event.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert self.slots.held == 0


async def test_as_many_get_in_as_there_are_places_in_their_order() -> None:
    holders = Holders(Slots(2), "abcd")
    assert await holders.settle() == "ab"
    holders.leave["b"].set()
    assert await holders.settle() == "abc"
    await holders.end()


async def test_more_places_let_in_who_waits() -> None:
    slots = Slots(1)
    holders = Holders(slots, "abcd")
    await holders.settle()
    slots.resize(3)
    assert await holders.settle() == "abc"
    assert slots.held == slots.places == 3
    await holders.end()


async def test_fewer_places_put_nobody_out_and_let_nobody_in() -> None:
    slots = Slots(3)
    holders = Holders(slots, "abcd")
    await holders.settle()
    slots.resize(1)
    for name in "ab":
        holders.leave[name].set()
        assert await holders.settle() == "abc"
    holders.leave["c"].set()
    assert await holders.settle() == "abcd"
    await holders.end()


async def test_who_is_cancelled_takes_no_place() -> None:
    slots = Slots(1)
    holders = Holders(slots, "abc")
    await holders.settle()
    holders.tasks["b"].cancel()
    holders.leave["a"].set()
    holders.tasks["a"].cancel()
    assert await holders.settle() == "ac"
    assert slots.held == 1
    await holders.end()


async def test_who_is_let_in_and_cancelled_at_once_gives_the_place_back() -> None:
    slots = Slots(1)
    holders = Holders(slots, "ab")
    await holders.settle()
    slots.resize(2)  # lets b in, which has not run since
    holders.tasks["b"].cancel()
    assert await holders.settle() == "a"
    assert slots.held == 1
    await holders.end()


def test_no_places_are_refused() -> None:
    with pytest.raises(ValueError, match="places: 0"):
        Slots(0)
