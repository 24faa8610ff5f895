from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gym_ray.errors import CaptureError
from gym_ray.model_call_capture.marks import IncompleteMarks
from gym_ray.model_call_capture.store import CaptureStore


class Disk(CaptureStore):
    """Refuses markers while it is full, and counts who asked on which thread."""

    full = True

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.tries: list[tuple[str, str]] = []

    def mark_incomplete(self, rollout_id: str) -> None:
        self.tries.append((threading.current_thread().name, rollout_id))
        if self.full:
            raise CaptureError(f"{rollout_id}: full")
        super().mark_incomplete(rollout_id)

    def tries_of(self, rollout_id: str) -> int:
        return sum(name == rollout_id for _, name in self.tries)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def patient(disk: Disk, told: list[str]) -> Iterator[IncompleteMarks]:
    """Marks whose rounds do not come within a test."""
    marks = IncompleteMarks(disk, on_marked=told.extend, retry_interval_s=3600)
    yield marks
    marks.close(20)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_mark_tries_itself_once_and_no_other(disk: Disk, patient: IncompleteMarks) -> None:
    for number in range(200):
        patient.mark(f"{number}-0", [f"call-{number}"])
    assert [name for thread, name in disk.tries if thread == "MainThread"] == [f"{number}-0" for number in range(200)]
    assert len(disk.tries) == 200
    assert len(patient.pending()) == 200


def test_new_marks_are_tried_at_once_and_bring_no_round_on(disk: Disk, patient: IncompleteMarks) -> None:
    for number in range(200):
        patient.add(f"{number}-0", f"call-{number}")
        until(lambda number=number: disk.tries_of(f"{number}-0") > 0)  # type: ignore[misc]
    assert len(disk.tries) == 200


def test_failed_marks_are_tried_again_until_the_disk_takes_them(disk: Disk, told: list[str]) -> None:
    marks = IncompleteMarks(disk, on_marked=told.extend, retry_interval_s=0.01)
    marks.mark("0-0", ["a", "b"])
    marks.add("1-0", "c")
    until(lambda: disk.tries_of("0-0") > 2 and disk.tries_of("1-0") > 2)
    assert marks.pending() == {"0-0", "1-0"}
    disk.full = False
    until(lambda: not marks.pending())
    assert disk.is_incomplete("0-0")
    assert disk.is_incomplete("1-0")
    assert marks.close(20) == frozenset()
    assert sorted(told) == ["a", "b", "c"]


def test_close_tries_once_more(disk: Disk, patient: IncompleteMarks, told: list[str]) -> None:
    patient.mark("0-0", ["a"])
    patient.mark("1-0", ["b"])
    patient.drop("1-0")
    disk.full = False
    assert patient.close(20) == frozenset()
    assert disk.is_incomplete("0-0")
    assert not disk.is_incomplete("1-0")
    assert told == ["a"]


def test_close_names_what_it_could_not_mark(disk: Disk, patient: IncompleteMarks) -> None:
    patient.mark("0-0", ["a"])
    assert patient.close(20) == {"0-0"}
