from __future__ import annotations

import asyncio

import pytest

from gym_ray.token_id_capture.capturing.late_marks import LateMarks, Mark

DEADLINE_S = 10.0


class Disk:
    """Takes marks, and refuses those of some rollouts."""

    def __init__(self) -> None:
        self.kept: list[Mark] = []
        self.refused: set[str] = set()
        self.tried: list[str] = []

    async def mark(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        self.tried.append(rollout_id)
        if rollout_id in self.refused:
            raise OSError("no space left")
        self.kept.append((rollout_id, model_call_id, reason))


async def test_a_mark_is_made_once_and_with_its_reason() -> None:
    disk = Disk()
    marks = LateMarks(disk.mark)
    for _ in range(3):
        marks.add("r0", "c0", "why")
    assert await marks.settled("r0", DEADLINE_S)
    assert disk.kept == [("r0", "c0", "why")]
    marks.add("r0", "c0", "why")  # made before, and asked for again
    assert await marks.aclose(DEADLINE_S) == frozenset()
    assert len(disk.kept) == 2


async def test_new_marks_do_not_wait_for_those_that_fail() -> None:
    disk = Disk()
    disk.refused = {f"bad{number}" for number in range(40)}
    marks = LateMarks(disk.mark, retry_interval_s=60.0)
    for name in sorted(disk.refused):
        marks.add(name)
    for number in range(5):
        marks.add(f"good{number}")
        assert await marks.settled(f"good{number}", DEADLINE_S)
    assert len(disk.tried) == 45
    assert marks.pending() == disk.refused
    disk.refused = set()
    assert await marks.aclose(DEADLINE_S) == frozenset()
    assert len(disk.kept) == 45


async def test_a_mark_that_fails_is_tried_until_it_is_made() -> None:
    disk = Disk()
    disk.refused = {"r0"}
    marks = LateMarks(disk.mark, retry_interval_s=0.001)
    marks.add("r0")
    marks.add("r1")
    async with asyncio.timeout(DEADLINE_S):
        while disk.tried.count("r0") < 3:
            await marks.settled("r0", 0.001)
    disk.refused = set()
    assert await marks.settled("r0", DEADLINE_S)
    assert disk.kept == [("r1", "", ""), ("r0", "", "")]
    assert await marks.aclose(DEADLINE_S) == frozenset()


async def test_what_cannot_be_marked_is_named_at_the_end() -> None:
    disk = Disk()
    disk.refused = {"r0"}
    marks = LateMarks(disk.mark, retry_interval_s=60.0)
    marks.add("r0", "c0")
    marks.add("r1")
    assert await marks.aclose(DEADLINE_S) == {"r0"}
    assert disk.kept == [("r1", "", "")]
    with pytest.raises(RuntimeError, match="r2: a mark came after capture was closed"):
        marks.add("r2")


async def test_marks_of_a_rollout_that_begins_anew_are_dropped() -> None:
    disk = Disk()
    disk.refused = {"r0", "r1"}
    marks = LateMarks(disk.mark, retry_interval_s=60.0)
    marks.add("r0", "c0")
    marks.add("r1")
    waiting = asyncio.create_task(marks.settled("r0", DEADLINE_S))
    await asyncio.sleep(0)
    marks.drop("r0")
    assert await asyncio.wait_for(waiting, 1.0)
    disk.refused = set()
    assert await marks.aclose(DEADLINE_S) == frozenset()
    assert disk.kept == [("r1", "", "")]


async def test_a_disk_that_hangs_does_not_hang_the_end() -> None:
    async def hang(rollout_id: str, model_call_id: str, reason: str) -> None:
        await asyncio.Event().wait()

    marks = LateMarks(hang)
    marks.add("r0")
    async with asyncio.timeout(DEADLINE_S):
        assert await marks.aclose(0.01) == {"r0"}


async def test_nothing_to_mark_needs_no_task() -> None:
    marks = LateMarks(Disk().mark)
    assert await marks.settled("r0", 0.0)
    assert await marks.aclose(DEADLINE_S) == frozenset()


def test_a_mark_needs_an_event_loop() -> None:
    marks = LateMarks(Disk().mark)
    with pytest.raises(RuntimeError, match="no running event loop"):
        marks.add("r0")
    assert marks.pending() == frozenset()
