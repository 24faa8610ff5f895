"""How the benchmarks of a job stand: what their drivers wrote, checked against what the cluster says where it answers.

Our own files come first, since Ray forgets. Ray's word counts where a driver could not write any more: it was killed,
never started, or went down with its cluster. What is not known is said to be so, and is never taken for success.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gym_ray.cli.jobs.cluster import job_server, job_server_address
from gym_ray.cli.jobs.log_tail import last_error
from gym_ray.errors import ClusterError
from gym_ray.submission.job_files import BenchmarkJob, JobFiles
from gym_ray.submission.job_states import BenchmarkState
from gym_ray.submission.statuses import BenchmarkStatus

if TYPE_CHECKING:
    from gym_ray.actors.jobs import RayJobs, RayWord

__all__ = ["Clusters", "Heard", "Standing", "settle", "standing", "standings", "watched"]

_LOOK_S = 0.3
_ASKED_S = 1.0
"""Between two looks at which a cluster is asked about drivers that give no sign of life."""

_OF_RAY = ("Running entrypoint for job", "Job entrypoint command failed", "Runtime env is setting up")
_AGAIN = "`gym-ray eval submit --resume` starts it again"


@dataclass(frozen=True, slots=True)
class Heard:
    """What a cluster said of a Ray job.

    Attributes:
        word: Its word; None where it does not know the job or was not asked.
        trouble: Why it could not be asked, "" where it could or nobody tried.
        asked: Whether it answered.
    """

    word: RayWord | None = None
    trouble: str = ""
    asked: bool = False

    @property
    def status(self) -> str:
        """One word for tables: Ray's, ``unknown`` for a job that the cluster does not know, "" without an answer."""
        if self.word is not None:
            return self.word.status
        return "unknown" if self.asked else ""

    @property
    def alive(self) -> bool:
        """Whether the cluster says that the job waits or runs."""
        return self.word is not None and not self.word.ended


class Clusters:
    """The clusters that the benchmarks of a job were submitted to, each reached at most once.

    Args:
        given: The address of the command line, None for those in the record.
    """

    def __init__(self, given: str | None = None) -> None:
        self._given = given
        self._reached: dict[str, RayJobs | ClusterError] = {}

    def of(self, job: BenchmarkJob) -> RayJobs:
        """Return the cluster of a benchmark.

        Raises:
            ClusterError: It cannot be reached; it is not tried a second time.
        """
        address = job_server_address(self._given, os.environ, recorded=job.address)
        if address not in self._reached:
            try:
                self._reached[address] = job_server(address)
            except ClusterError as error:
                self._reached[address] = error
        found = self._reached[address]
        if isinstance(found, ClusterError):
            raise found
        return found

    def hear(self, job: BenchmarkJob) -> Heard:
        """Return what its cluster says of a benchmark."""
        if job.submission_id is None:
            return Heard()
        try:
            return Heard(self.of(job).word(job.submission_id), asked=True)
        except ClusterError as error:
            return Heard(trouble=str(error))


@dataclass(frozen=True, slots=True)
class Standing:
    """How a benchmark stands.

    Attributes:
        job: What the job's record says of it.
        status: What its driver last wrote.
        heard: What its cluster says.
        state: Its state, as far as anybody knows.
        counted: The state that counts for an exit code: ``failed`` where nobody knows of a living driver.
        note: Why, for people; "" when there is nothing to add.
    """

    job: BenchmarkJob
    status: BenchmarkStatus
    heard: Heard
    state: BenchmarkState
    counted: BenchmarkState
    note: str

    @property
    def over(self) -> bool:
        """Whether nothing more can come of it by itself, as far as anybody knows."""
        return self.counted not in ("queued", "preparing", "running")


def standing(job: BenchmarkJob, status: BenchmarkStatus, heard: Heard, now: float) -> Standing:
    """Return how a benchmark stands.

    Args:
        job: What the job's record says of it.
        status: Its driver's last word, read after the cluster was asked: a driver writes its end before it ends.
        heard: What the cluster says.
        now: Unix time, seconds.
    """
    state, counted, note = _judged(job, status, heard, now)
    return Standing(job, status, heard, state, counted, note)


def _judged(
    job: BenchmarkJob, status: BenchmarkStatus, heard: Heard, now: float
) -> tuple[BenchmarkState, BenchmarkState, str]:
    if status.ended:
        return status.state, status.state, status.message
    if job.state == "refused":
        return "failed", "failed", f"the cluster did not take it: {job.message}"
    if job.submission_id is None:
        return status.state, "failed", f"it was never submitted; {_AGAIN}"
    if heard.word is not None and heard.word.ended:
        return _ended_by_ray(heard.word)
    if heard.asked and heard.word is None:
        return "failed", "failed", f"the cluster does not know it: the head that had it is lost; {_AGAIN}"
    if status.silent_for_s(now) is None:
        return status.state, status.state, status.message
    if heard.alive:
        return status.state, status.state, f"{status.told(now)}; Ray says {heard.status}"
    return status.state, "failed", status.told(now)


def _ended_by_ray(word: RayWord) -> tuple[BenchmarkState, BenchmarkState, str]:
    if word.status == "STOPPED":
        return "stopped", "stopped", "Ray ended it before its driver could say how far it was"
    lines = [line for line in word.message.splitlines() if line.strip() and not any(own in line for own in _OF_RAY)]
    last = f": {lines[-1].strip()}" if lines else ""
    return "failed", "failed", f"its driver ended without a word, Ray says {word.status}{last}"


def standings(files: JobFiles, names: Iterable[str], clusters: Clusters, *, ask_all: bool = True) -> list[Standing]:
    """Return how benchmarks of a job stand, in the order of ``names``.

    Args:
        files: The job.
        names: Its benchmarks.
        clusters: Asked about those that are not over by their own word.
        ask_all: False asks only about those whose driver gives no sign of life.

    Raises:
        StorageError: A status cannot be read.
    """
    jobs = {job.name: job for job in files.record.benchmarks}
    found = []
    for name in names:
        now = time.time()
        status = files.status(name)
        speaks = status.heartbeat_at is not None and status.silent_for_s(now) is None
        heard = Heard()
        if not status.ended and (ask_all or not speaks):
            heard = clusters.hear(jobs[name])
            status = files.status(name)
        found.append(_explained(files, standing(jobs[name], status, heard, time.time())))
    return found


def _explained(files: JobFiles, found: Standing) -> Standing:
    """Add to a failure what its program said last, which its driver only logged."""
    error = last_error(files.driver_log(found.job.name)) if found.status.state == "failed" else ""
    if not error or error in found.note:
        return found
    return replace(found, note=f"{found.note}: {error}" if found.note else error)


def watched(files: JobFiles, names: Collection[str], clusters: Clusters) -> Iterator[list[Standing]]:
    """Look again and again how benchmarks stand; the last look is the one at which all are over.

    Raises:
        StorageError: A status cannot be read.
    """
    while True:
        found = standings(files, names, clusters, ask_all=False)
        yield found
        if all(one.over for one in found):
            return
        time.sleep(_ASKED_S if any(one.heard.asked for one in found) else _LOOK_S)


def settle(files: JobFiles, found: Standing) -> Standing:
    """Write down what Ray says of a benchmark whose driver ended without a word, because Ray forgets it.

    Raises:
        StorageError: It could not be written.
    """
    word = found.heard.word
    if found.status.ended or word is None or not word.ended:
        return found
    ended = replace(found.status, state=found.state, message=found.note, ended_at=time.time())
    files.record_status(found.job.name, ended)
    return replace(found, status=ended)
