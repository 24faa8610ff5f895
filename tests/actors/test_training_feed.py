"""The trainer's end of a step: what it makes of a host that is cut off, gone, or faulty, without a cluster."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from gym_ray.actors.training import feed as training_feed
from gym_ray.actors.training.feed import StepFeed, in_threads
from gym_ray.errors import ClusterError, ServerStartError
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.training.outcomes import Requested, lost_outcome
from gym_ray.rollouts.training.step import Taken

ASKED = tuple(Requested(n, n // 2, f"r-{n // 2}-{n % 2}", n // 2, n % 2, "plain") for n in range(4))


class FakeHost:
    """Answers ``take`` from a script: an answer, None, or what to raise; and notes what it was told."""

    def __init__(self, *script: Any) -> None:
        self._script, self.delivered, self.finished = iter(script), [], []  # type: ignore[var-annotated]
        self.take, self.finish = self, _Finish(self.finished)

    def remote(self, _number: int, _most: int, _wait_s: float, delivered: int) -> Any:
        self.delivered.append(delivered)
        return next(self._script)


class _Finish:
    def __init__(self, told: list[str]) -> None:
        self._told = told

    def remote(self, _number: int, state: str) -> None:
        self._told.append(state)


def caused(cause: Exception) -> ClusterError:
    error = ClusterError("as calls say it")
    error.__cause__ = cause
    return error


UNAVAILABLE = caused(ActorUnavailableError("cut off", b"0" * 16))
DIED = caused(ActorDiedError())
FAULT = caused(RayTaskError("take", "traceback", KeyError("fault")))


@pytest.fixture
def feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StepFeed]:
    def answer(reference: Any, _timeout_s: float | None) -> Any:
        if isinstance(reference, Exception):
            raise reference
        return reference

    monkeypatch.setattr(training_feed, "get", answer)

    def make(host: FakeHost, *, groups: bool = False) -> StepFeed:
        paths = RunPaths.of(tmp_path / "step.jsonl")
        return StepFeed(host, 1, paths, ASKED, frozenset(), None, lambda: None, 0, groups, threading.Event())

    return make


def unit(*ordinals: int) -> list[tuple[Any, ...]]:
    return [(lost_outcome(ASKED[n], "cancelled"),) for n in ordinals]


def reasons(feed: StepFeed) -> list[tuple[str, ...]]:
    return [result.reasons for results in feed.units() for result in results]


def test_a_host_that_is_cut_off_for_a_moment_is_asked_again(feed: Callable[..., StepFeed]) -> None:
    host = FakeHost(Taken(unit(0)), UNAVAILABLE, UNAVAILABLE, Taken(unit(1, 2)), Taken(unit(3), over=True))
    assert reasons(feed(host)) == [("cancelled",)] * 4
    assert host.delivered == [0, 1, 1, 1, 3], "it is told what arrived, so that it gives the rest again"
    assert host.finished == []


@pytest.mark.parametrize("gone", [DIED, None])
def test_a_host_that_is_gone_loses_what_is_not_stored(
    feed: Callable[..., StepFeed], gone: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert reasons(feed(FakeHost(Taken(unit(1)), gone))) == [("cancelled",)] + [("collector_lost",)] * 3
    assert [record.levelno for record in caplog.records][:1] == [logging.WARNING]


def test_a_host_that_fails_is_told_from_one_that_is_gone(
    feed: Callable[..., StepFeed], caplog: pytest.LogCaptureFixture
) -> None:
    host = FakeHost(Taken(unit(1)), FAULT)
    assert reasons(feed(host)) == [("cancelled",)] + [("collector_failed",)] * 3
    assert host.finished == ["failed"], "it lives, and must not go on with the step"
    fault = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert "fault" in fault.message
    assert fault.exc_info is not None


def test_what_is_neither_loss_nor_fault_is_raised_and_ends_the_step(feed: Callable[..., StepFeed]) -> None:
    host = FakeHost(ServerStartError("no answer"))
    with pytest.raises(ServerStartError):
        reasons(feed(host))
    assert host.finished == ["cut short"]


def test_groups_of_a_lost_host_are_whole(feed: Callable[..., StepFeed]) -> None:
    units = list(feed(FakeHost(DIED), groups=True).units())
    assert [[(item.task_index, item.rollout_index) for item in results] for results in units] == [
        [(0, 0), (0, 1)],
        [(1, 0), (1, 1)],
    ]


def test_leaving_early_ends_the_step(feed: Callable[..., StepFeed]) -> None:
    host = FakeHost(Taken(unit(0, 1)))
    results = feed(host).units()
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert host.finished == ["cut short"]


async def test_who_cancels_an_iteration_does_not_wait_for_a_straggler() -> None:
    stop, closed, began = threading.Event(), threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        try:
            began.set()
            stop.wait(60)
            assert stop.is_set(), "nobody told it to stop"
            yield from ()
        finally:
            closed.set()

    async def take() -> list[int]:
        return [item async for item in in_threads(items(), stop)]  # type: ignore[arg-type]

    taking = asyncio.create_task(take())
    await asyncio.to_thread(began.wait, 60)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert closed.is_set()


def test_a_step_that_is_not_wanted_any_more_ends(feed: Callable[..., StepFeed]) -> None:
    host = FakeHost(Taken(unit(0)), Taken())
    step = feed(host)
    results = step.units()
    next(results)
    step.stop.set()
    assert list(results) == []
    assert host.finished == ["cut short"]
