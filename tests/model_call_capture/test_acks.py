from __future__ import annotations

import asyncio
import threading

from gym_ray.model_call_capture.acks import Deadlines, LoopAcks
from gym_ray.testing.loop_turns import LoopTurns
from gym_ray.testing.waiting import until

BURST, A_TURN = 200, 16


def acks_for(timeout_s: float, timed_out: list[int]) -> LoopAcks[int]:
    return LoopAcks(asyncio.get_running_loop(), timeout_s, timed_out.append)


async def test_waits_that_end_together_end_a_few_in_each_turn() -> None:
    acks, timed_out, woken = acks_for(60, []), [], []

    async def wait(key: int, turns: LoopTurns) -> None:
        await acks.expect(key)
        turns.note("woken")
        woken.append(key)

    with LoopTurns() as turns:
        tasks = [asyncio.create_task(wait(key, turns)) for key in range(BURST)]
        await asyncio.sleep(0)
        thread = threading.Thread(target=acks.deliver, args=(range(BURST),))
        thread.start()
        async with asyncio.timeout(30):
            await asyncio.gather(*tasks)
        thread.join()
    assert woken == list(range(BURST))
    assert turns.most("woken") <= 2 * A_TURN
    assert timed_out == []


async def test_no_wait_is_lost_when_threads_deliver_while_others_are_released() -> None:
    acks, threads = acks_for(60, []), 4
    futures = [acks.expect(key) for key in range(threads * BURST)]

    def deliver(first: int) -> None:
        for key in range(first, first + BURST, 5):
            acks.deliver(range(key, key + 5))

    delivering = [threading.Thread(target=deliver, args=(number * BURST,)) for number in range(threads)]
    for thread in delivering:
        thread.start()
    async with asyncio.timeout(30):
        await asyncio.gather(*futures)
    for thread in delivering:
        thread.join()


async def test_a_delivery_for_nobody_takes_no_later_one_with_it() -> None:
    acks = acks_for(60, [])
    gone, late = acks.expect(1), acks.expect(2)
    gone.cancel()
    acks.deliver([1, 7])
    acks.deliver([2])
    await asyncio.wait_for(late, 30)


async def test_waits_that_time_out_together_end_a_few_in_each_turn() -> None:
    with LoopTurns() as turns:
        timed_out: list[int] = []

        def note(key: int) -> None:
            turns.note("timed out")
            timed_out.append(key)

        acks = LoopAcks(asyncio.get_running_loop(), 0.01, note)
        futures = [acks.expect(key) for key in range(BURST)]
        async with asyncio.timeout(30):
            await asyncio.gather(*futures)
    assert timed_out == list(range(BURST))
    assert turns.most("timed out") <= 2 * A_TURN


async def test_what_is_dropped_while_others_expire_does_not_expire() -> None:
    expired: list[int] = []

    def expire(key: int) -> None:
        expired.append(key)
        if key == 0:  # the others of this key's turn are to come, and those of the next
            for other in (1, BURST - 1):
                deadlines.drop(other)

    deadlines = Deadlines(asyncio.get_running_loop(), 0.01, expire)
    for key in range(BURST):
        deadlines.set(key)
    await until(lambda: len(expired) == BURST - 2)
    deadlines.set(BURST)  # the timer works on
    await until(lambda: len(expired) == BURST - 1)
    assert expired == [0, *range(2, BURST - 1), BURST]
