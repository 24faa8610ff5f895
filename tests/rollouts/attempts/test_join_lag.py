from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_ray.rollouts.attempts.join_lag import JoinLag
from gym_ray.testing.begun_run import BegunRun
from gym_ray.testing.fake_rollouts import FakePort
from gym_ray.testing.waiting import until


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_oldest_is_the_one_that_ended_first() -> None:
    clock = Clock()
    lag = JoinLag(clock)
    assert (lag.oldest_s(), lag.p90_ms()) == (None, None)
    with lag.unjoined(7):
        clock.now += 2.0
        with lag.unjoined(3):
            clock.now += 1.0
            assert lag.oldest_s() == 3.0
        assert lag.oldest_s() == 3.0
    assert lag.oldest_s() is None
    assert lag.p90_ms() == pytest.approx(3000.0, rel=0.02)


def test_what_was_not_stored_is_no_lag_and_is_not_waited_for() -> None:
    lag = JoinLag(Clock())
    with pytest.raises(OSError, match="full"), lag.unjoined(0):
        raise OSError("the disk is full")
    assert (lag.oldest_s(), lag.p90_ms()) == (None, None)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[BegunRun]:
    made = BegunRun(tmp_path, 3)
    yield made
    made.close()


async def test_a_run_tells_how_far_its_joins_are_behind(run: BegunRun) -> None:
    """D167: rows that wait, run and join are counted, and the oldest unjoined one has an age."""
    may_join = asyncio.Event()

    async def wait(*_: Any) -> None:
        await may_join.wait()

    port = FakePort(run.outputs, join_script=wait, capacity=1)
    collection = run.collection(port)
    whole = asyncio.create_task(collection.run())
    await until(lambda: collection.progress().joining == 2)
    progress = collection.progress()
    assert (progress.pending, progress.running, progress.done) == (1, 0, 0), "residents are twice those that run"
    assert progress.oldest_unjoined_s is not None
    assert progress.oldest_unjoined_s >= 0
    assert progress.join_lag_p90_ms is None
    may_join.set()
    ended = await whole
    assert ended.done == 3
    assert ended.oldest_unjoined_s is None
    assert ended.join_lag_p90_ms is not None
