"""What is said of a benchmark, from what its driver wrote and what its cluster says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gym_ray.cli.jobs.log_tail import LogTail, last_error
from gym_ray.cli.jobs.standing import Clusters, Heard, heard_out, settle, standing, watched
from gym_ray.submission.documents import read_submission
from gym_ray.submission.job_files import BenchmarkJob, JobFiles, write_job
from gym_ray.submission.planning import plan_submit
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


def said(status: str, message: str = "", for_s: float = 0.0) -> Any:
    return Heard(Word(status, message), asked=True, for_s=for_s)  # type: ignore[arg-type]


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
        (SPEAKS, said("SUCCEEDED"), "running", "running", "its driver's word is not seen here yet; Ray says SUCCEEDED"),
        (SPEAKS, said("SUCCEEDED", for_s=31), "failed", "failed", "is the same storage, mounted at the same path"),
        (QUEUED, said("SUCCEEDED", for_s=31), "failed", "failed", "is the same storage, mounted at the same path"),
        (QUEUED, said("RUNNING", for_s=29), "queued", "queued", "its driver's word is not seen here yet; Ray says RUN"),
        (QUEUED, said("RUNNING", for_s=31), "queued", "failed", "is the same storage, mounted at the same path"),
        (QUEUED, said("PENDING", for_s=3000), "queued", "queued", ""),
        (SPEAKS, said("RUNNING", for_s=3000), "running", "running", ""),
        (SPEAKS, said("FAILED", PRINTED), "failed", "failed", "ended without a word, Ray says FAILED: no module"),
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


class Cluster:
    """Says one thing of every job; each time that it is asked, ten seconds have gone by."""

    def __init__(self, status: str) -> None:
        self.status, self.asked = status, 0

    def word(self, _: str) -> Word:
        self.asked += 1
        return Word(self.status)

    def clusters(self) -> Clusters:
        return Clusters(reach=lambda _: self, clock=lambda: 10.0 * self.asked)  # type: ignore[arg-type, return-value]


@pytest.fixture
def files(tmp_path: Path) -> JobFiles:
    """A job of one benchmark that was submitted."""
    document = tmp_path / "submit.yaml"
    whole = {
        "compute": {"here": {"type": "ray"}},
        "driver": {"benchmarks": {"b": {"command": "true"}}},
        "job": {"output_path": str(tmp_path)},
    }
    document.write_text(json.dumps(whole))
    files = write_job(plan_submit(read_submission(document), tmp_path / "gym-job-x"), created_at=1.0)
    files.record_submission(JOB)
    return files


@pytest.mark.parametrize(("status", "state"), [("RUNNING", "queued"), ("SUCCEEDED", "failed")])
def test_a_directory_that_is_not_shared_is_told_in_bounded_time(files: JobFiles, status: str, state: str) -> None:
    cluster = Cluster(status)
    (found,) = heard_out(files, ["b"], cluster.clusters())
    assert (found.state, found.counted, cluster.asked) == (state, "failed", 5)
    assert "job.output_path is the same storage" in found.note
    assert settle(files, found) == found
    assert files.status("b") == QUEUED, "what the driver wrote elsewhere may yet come"
    *_, (last,) = watched(files, ["b"], Cluster(status).clusters())
    assert (last.state, last.counted) == (state, "failed")


def test_a_word_that_comes_late_counts(files: JobFiles) -> None:
    class Late(Cluster):
        def word(self, submission_id: str) -> Word:
            if self.asked == 1:
                files.record_status("b", BenchmarkStatus("complete", 0))
            return super().word(submission_id)

    cluster = Late("SUCCEEDED")
    (found,) = heard_out(files, ["b"], cluster.clusters())
    assert (found.counted, cluster.asked) == ("complete", 2)


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


@pytest.mark.parametrize("shift", range(4))
def test_a_line_that_never_ends_is_given_in_pieces(tmp_path: Path, shift: int) -> None:
    path = tmp_path / "driver.log"
    text = "x" * shift + "\U0001f300" * (3 << 18) + "end"
    path.write_bytes(text.encode() + b"\nnext\n")
    *pieces, after = LogTail(path).lines()
    assert "".join(pieces) == text, "no character is torn"
    assert (len(pieces), after) == (4, "next")
    assert max(len(piece.encode()) for piece in pieces) < (1 << 20) + 4
    path.write_bytes(b"\xff" * (1 << 20) + b"\x80" * (1 << 20) + b"\xf0")
    assert sum(len(piece) for piece in LogTail(path).lines(last=True)) == (2 << 20) + 1, "nor is anything held back"


def test_the_last_error_of_a_log_is_found(tmp_path: Path) -> None:
    path = tmp_path / "driver.log"
    assert last_error(path) == ""
    path.write_text("error: first\nfine\nerror: last\n[driver] failed: error: not one\n")
    assert last_error(path) == "last"
    path.write_text("x" * 100_000 + "\n")
    assert last_error(path) == ""
