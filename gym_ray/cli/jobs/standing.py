"""How the benchmarks of a job stand: what their drivers wrote, checked against what the cluster says where it answers.

Our own files come first, since Ray forgets. Ray's word counts where a driver could not write any more: it was killed,
never started, or went down with its cluster. What is not known is said to be so, and is never taken for success.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gym_ray.cli.jobs.cluster import job_server, job_server_address
from gym_ray.cli.jobs.log_tail import last_error
from gym_ray.errors import ClusterError
from gym_ray.submission.job_files import BenchmarkJob, JobFiles
from gym_ray.submission.job_states import BenchmarkState
from gym_ray.submission.statuses import SILENT_AFTER_S, BenchmarkStatus

if TYPE_CHECKING:
    from gym_ray.actors.jobs import RayJobs, RayWord

__all__ = ["Clusters", "Heard", "Standing", "heard_out", "settle", "standing", "standings", "watched"]

_LOOK_S = 0.3
_ASKED_S = 1.0
"""Between two looks at which a cluster is asked about drivers that give no sign of life."""

_OF_RAY = ("Running entrypoint for job", "Job entrypoint command failed", "Runtime env is setting up")
_AGAIN = "`gym-ray eval submit --resume` starts it again"
_NOT_SHARED = (
    "it writes into another directory than this one: check that job.output_path is the same storage, mounted at the "
    "same path, on every node and here"
)


@dataclass(frozen=True, slots=True)
class Heard:
    """What a cluster said of a Ray job.

    Attributes:
        word: Its word; None where it does not know the job or was not asked.
        trouble: Why it could not be asked, "" where it could or nobody tried.
        asked: Whether it answered.
        for_s: For how long it has said the same to this command.
    """

    word: RayWord | None = None
    trouble: str = ""
    asked: bool = False
    for_s: float = 0.0

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
        reach: How a cluster is reached; for tests.
        clock: A clock that never goes back, in seconds; for tests.
    """

    def __init__(
        self,
        given: str | None = None,
        reach: Callable[[str], RayJobs] = job_server,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given, self._reach, self._clock = given, reach, clock
        self._reached: dict[str, RayJobs | ClusterError] = {}
        self._since: dict[tuple[str, str], float] = {}

    def of(self, job: BenchmarkJob) -> RayJobs:
        """Return the cluster of a benchmark.

        Raises:
            ClusterError: It cannot be reached; it is not tried a second time.
        """
        address = job_server_address(self._given, os.environ, recorded=job.address)
        if address not in self._reached:
            try:
                self._reached[address] = self._reach(address)
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
            word = self.of(job).word(job.submission_id)
        except ClusterError as error:
            return Heard(trouble=str(error))
        now = self._clock()
        since = self._since.setdefault((job.submission_id, word.status if word else ""), now)
        return Heard(word, asked=True, for_s=now - since)


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

    @property
    def overdue(self) -> bool:
        """Whether its driver has written what is not seen here yet; it is waited for no longer than a while."""
        return not self.over and _has_written(self.status, self.heard)


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
    if heard.word is not None and _has_written(status, heard) and heard.for_s <= SILENT_AFTER_S:
        return status.state, status.state, f"its driver's word is not seen here yet; Ray says {heard.word.status}"
    if heard.word is not None and heard.word.ended:
        return _ended_by_ray(heard.word)
    if heard.asked and heard.word is None:
        return "failed", "failed", f"the cluster does not know it: the head that had it is lost; {_AGAIN}"
    if _has_written(status, heard):
        return status.state, "failed", f"Ray says that it runs, but no word of its driver is seen here: {_NOT_SHARED}"
    if status.silent_for_s(now) is None:
        return status.state, status.state, status.message
    if heard.alive:
        return status.state, status.state, f"{status.told(now)}; Ray says {heard.status}"
    return status.state, "failed", status.told(now)


def _has_written(status: BenchmarkStatus, heard: Heard) -> bool:
    """Return whether a driver must have written more than is seen: its first word, as it runs, or a good end.

    File systems may show that late, and another directory never does.
    """
    if heard.word is None or status.ended:
        return False
    return heard.word.status == "SUCCEEDED" or (heard.word.status == "RUNNING" and status.heartbeat_at is None)


def _ended_by_ray(word: RayWord) -> tuple[BenchmarkState, BenchmarkState, str]:
    if word.status == "STOPPED":
        return "stopped", "stopped", "Ray ended it before its driver could say how far it was"
    if word.status == "SUCCEEDED":
        return (
            "failed",
            "failed",
            f"Ray says SUCCEEDED, but no such word of its driver is seen here: {_NOT_SHARED}",
        )
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


def heard_out(files: JobFiles, names: Collection[str], clusters: Clusters) -> list[Standing]:
    """Return how benchmarks of a job stand, after words that are on their way got the time to come.

    Raises:
        StorageError: A status cannot be read.
    """
    while True:
        found = standings(files, names, clusters)
        if not any(one.overdue for one in found):
            return found
        time.sleep(_LOOK_S)


def settle(files: JobFiles, found: Standing) -> Standing:
    """Write down what Ray says of a benchmark whose driver ended without a word, because Ray forgets it.

    Where all went well by Ray's word, the driver did write its end, and only it is not seen here: it is left alone.

    Raises:
        StorageError: It could not be written.
    """
    word = found.heard.word
    if found.status.ended or word is None or not word.ended or word.status == "SUCCEEDED":
        return found
    ended = replace(found.status, state=found.state, message=found.note, ended_at=time.time())
    files.record_status(found.job.name, ended)
    return replace(found, status=ended)
