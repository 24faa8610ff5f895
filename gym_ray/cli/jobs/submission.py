"""Hand the benchmarks of a job to a cluster, each exactly once, and keep in the record what was asked for.

The record is written before a benchmark is submitted and after: whatever dies in between, the id under which the
cluster may have it is known, and asking again finds it.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gym_ray.cli.jobs.entrypoint import entrypoint
from gym_ray.cli.jobs.standing import Clusters, Heard, Standing, standing, standings
from gym_ray.errors import ClusterError
from gym_ray.submission.computes import RayCompute
from gym_ray.submission.job_files import BenchmarkJob, JobFiles

if TYPE_CHECKING:
    from gym_ray.actors.jobs import JobRequest, RayJobs

__all__ = ["Submitter", "just_submitted", "unfinished"]

_NUMBERED = re.compile(r"-([1-9][0-9]*)\Z")


@dataclass(frozen=True, slots=True)
class Submitter:
    """How the benchmarks of one job are submitted.

    Attributes:
        files: The job.
        jobs: The cluster.
        compute: What the document says about it.
        working_dir: Directory that is uploaded as it is, None for none.
    """

    files: JobFiles
    jobs: RayJobs
    compute: RayCompute
    working_dir: Path | None

    def submit(self, name: str) -> BenchmarkJob:
        """Submit a benchmark under a new id, and return what the record says of it then.

        Its state is ``submitted``; or ``refused``, when the cluster surely does not have it; or still ``planned``, when
        nobody could tell, with the reason as its message.

        Raises:
            StorageError: The record could not be written; what was written before names the id.
        """
        job = self._record(BenchmarkJob(name, self._next_id(name), self.jobs.address))
        try:
            self.jobs.submit(self._request(job))
        except ClusterError as error:
            return self._record(replace(job, state=self._state_after(job, error), message=str(error)))
        return self._record(replace(job, state="submitted"))

    def _state_after(self, job: BenchmarkJob, error: ClusterError) -> str:
        """Return what became of a submission that failed here."""
        try:
            known = self.jobs.word(job.submission_id or "") is not None
        except ClusterError as other:
            error.add_note(str(other))
            return "planned"
        return "submitted" if known else "refused"

    def _record(self, job: BenchmarkJob) -> BenchmarkJob:
        self.files.record_submission(job)
        return job

    def _next_id(self, name: str) -> str:
        """Return an id that no earlier submission of the benchmark had: its job's, its name, and a number."""
        earlier = next(job.submission_id for job in self.files.record.benchmarks if job.name == name)
        found = _NUMBERED.search(earlier or "")
        return f"{self.files.record.id}-{name}-{int(found[1]) + 1 if found else 1}"

    def _request(self, job: BenchmarkJob) -> JobRequest:
        from gym_ray.actors.jobs import JobRequest

        directory = self.files.benchmark(job.name)
        record = self.files.record
        return JobRequest(
            submission_id=job.submission_id or "",
            entrypoint=entrypoint(directory, python=self.compute.python, here=sys.executable),
            working_dir=self.working_dir,
            metadata={
                "gym_ray_job": record.id,
                "gym_ray_benchmark": job.name,
                "gym_ray_directory": str(directory),
            },
            num_cpus=self.compute.entrypoint_num_cpus,
            resources=self.compute.entrypoint_resources,
        )


def just_submitted(files: JobFiles) -> list[Standing]:
    """Return how the benchmarks of a job stand by its own files alone.

    Raises:
        StorageError: A status cannot be read.
    """
    now = time.time()
    return [standing(job, files.status(job.name), Heard(), now) for job in files.record.benchmarks]


def unfinished(files: JobFiles, *, given: str | None) -> list[str]:
    """Return the benchmarks that are over but not complete, which another driver may take up.

    Args:
        files: The job.
        given: The cluster that shall take them, None for the one that had them.

    Raises:
        ClusterError: One of them is not over, or nobody can tell.
    """
    found = standings(files, [job.name for job in files.record.benchmarks], Clusters())
    for one in found:
        if not one.over and not _moved(one, given):
            raise ClusterError(f"{files.directory}: {one.job.name}: {_still(one)}")
    return [one.job.name for one in found if one.state != "complete"]


def _moved(one: Standing, given: str | None) -> bool:
    """Return whether a benchmark waited in a cluster that is gone, and another one is named."""
    gone = bool(one.heard.trouble) and one.state == "queued"
    return gone and given is not None and given.rstrip("/") != one.job.address


def _still(one: Standing) -> str:
    if one.heard.trouble and one.state == "queued":
        problem = f"is {one.state}, and its cluster cannot be asked: {one.heard.trouble}"
        return f"{problem}; if that cluster is gone, name the new one with --address"
    return f"is {one.state}; stop it first with `gym-ray eval stop`, or wait for it"
