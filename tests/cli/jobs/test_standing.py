"""What is said of a benchmark, from what its driver wrote and what its cluster says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gym_ray.cli.jobs.log_tail import LogTail, last_error
from gym_ray.cli.jobs.standing import Heard, standing
from gym_ray.submission.job_files import BenchmarkJob
from gym_ray.submission.statuses import BenchmarkStatus

NOW = 1_000_000.0
JOB = BenchmarkJob("b", "job-b-1", "http://head:8265", "submitted")
QUEUED = BenchmarkStatus()
SPEAKS = BenchmarkStatus("running", heartbeat_at=NOW - 5)
SILENT = BenchmarkStatus("running", heartbeat_at=NOW - 500, host="node7")
UNKNOWN = Heard(asked=True)
UNREACHABLE = Heard(trouble="nobody answers")


@dataclass(frozen=True)
class Word:
    status: str
    message: str = ""

    @property
    def ended(self) -> bool:
        return self.status in ("STOPPED", "SUCCEEDED", "FAILED")


def said(status: str, message: str = "") -> Any:
    return Heard(Word(status, message), asked=True)  # type: ignore[arg-type]


PRINTED = "Job entrypoint command failed with exit code 1, last …:\nno module\nRunning entrypoint for job x: for p in\n"


@pytest.mark.parametrize(
    ("status", "heard", "state", "counted", "note"),
    [
        (BenchmarkStatus("complete"), UNREACHABLE, "complete", "complete", ""),
        (BenchmarkStatus("failed", message="why"), said("RUNNING"), "failed", "failed", "why"),
        (QUEUED, said("PENDING"), "queued", "queued", ""),
        (QUEUED, UNREACHABLE, "queued", "queued", ""),
        (QUEUED, UNKNOWN, "failed", "failed", "the head that had it is lost"),
        (QUEUED, said("FAILED", PRINTED), "failed", "failed", "Ray says FAILED: no module"),
        (SPEAKS, said("RUNNING"), "running", "running", ""),
        (SPEAKS, UNREACHABLE, "running", "running", ""),
        (SPEAKS, UNKNOWN, "failed", "failed", "the head that had it is lost"),
        (SPEAKS, said("SUCCEEDED"), "failed", "failed", "ended without a word"),
        (SPEAKS, said("STOPPED"), "stopped", "stopped", "Ray ended it before"),
        (SILENT, said("RUNNING"), "running", "running", "no word since"),
        (SILENT, UNREACHABLE, "running", "failed", "the driver on node7 may be dead"),
        (SILENT, Heard(), "running", "failed", "no word since"),
    ],
)
def test_nothing_looks_better_than_it_is(
    status: BenchmarkStatus, heard: Heard, state: str, counted: str, note: str
) -> None:
    found = standing(JOB, status, heard, NOW)
    assert (found.state, found.counted) == (state, counted)
    assert note in found.note
    assert bool(found.note) == bool(note)
    assert found.over == (counted not in ("queued", "running"))


def test_what_was_not_submitted_is_not_waited_for() -> None:
    refused = BenchmarkJob("b", "job-b-1", "http://head:8265", "refused", "no disk")
    assert standing(refused, QUEUED, UNKNOWN, NOW).note == "the cluster did not take it: no disk"
    never = standing(BenchmarkJob("b"), QUEUED, Heard(), NOW)
    assert (never.counted, never.over) == ("failed", True)
    assert "it was never submitted" in never.note


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "driver.log"
    tail = LogTail(path)
    assert list(tail.lines()) == []
    path.write_bytes(b"one\ntw")
    assert list(tail.lines()) == ["one"]
    with path.open("ab") as file:
        file.write(b"o\n\xff\nthree")
    assert list(tail.lines()) == ["two", "\ufffd"]
    assert list(tail.lines(last=True)) == ["three"]
    assert list(tail.lines(last=True)) == []
    path.write_bytes(b"anew\n")
    assert list(tail.lines()) == ["anew"], "a file that shrank is another one"


def test_the_last_error_of_a_log_is_found(tmp_path: Path) -> None:
    path = tmp_path / "driver.log"
    assert last_error(path) == ""
    path.write_text("error: first\nfine\nerror: last\n[driver] failed: error: not one\n")
    assert last_error(path) == "last"
    path.write_text("x" * 100_000 + "\n")
    assert last_error(path) == ""
