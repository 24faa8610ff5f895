"""The jobs of a Ray cluster: submit one exactly once, look at it, stop it.

Only hosting: what a job runs, where its files are and what its end means is decided elsewhere. Nothing secret goes
through here: Ray shows the entrypoint, the runtime environment and the metadata of a job to everybody who may ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym_ray.actors.job_server import LOST_REPLIES, connect, last_line, named
from gym_ray.errors import ClusterError

__all__ = ["JobRequest", "RayJobs", "RayWord"]

_TRIES = 3
_MISSING = "status code 404"
_ENDED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job as the cluster is asked for it.

    Attributes:
        submission_id: Its name, ours and fixed before the first try, so that asking again finds it.
        entrypoint: Shell command.
        working_dir: Directory that is uploaded, but for what Ray itself leaves out; None for what is installed there.
        metadata: What Ray shows beside the job.
        num_cpus: CPUs that are kept for the entrypoint; with these or ``resources`` it may run on any node that has
            them, without both on the head.
        resources: Other resources that it needs.
    """

    submission_id: str
    entrypoint: str
    working_dir: Path | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    num_cpus: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def runtime_env(self) -> dict[str, Any]:
        """What Ray sets up before the job starts."""
        return {} if self.working_dir is None else {"working_dir": str(self.working_dir)}


@dataclass(frozen=True, slots=True)
class RayWord:
    """What Ray says of a job.

    Attributes:
        status: ``PENDING``, ``RUNNING``, ``STOPPED``, ``SUCCEEDED`` or ``FAILED``.
        message: Ray's words; of a failed job they hold the last lines that it printed.
    """

    status: str
    message: str

    @property
    def ended(self) -> bool:
        """Whether the job's process is over."""
        return self.status in _ENDED


class RayJobs:
    """The jobs of one cluster.

    Args:
        address: ``http://host:port`` of its job server.
        answer_s: Longest wait for an answer.

    Raises:
        ClusterError: Nobody answers, it is no job server, it does not take our token, or it runs another Ray or Python.
    """

    def __init__(self, address: str, *, answer_s: float = 60.0) -> None:
        self.address = address
        self._client = connect(address, answer_s=answer_s)

    def submit(self, job: JobRequest) -> bool:
        """Have the cluster run a job, once, however often this is called and whatever replies get lost.

        Returns:
            False when the cluster had the job already.

        Raises:
            ClusterError: It was refused, or no reply came; in the second case it may run all the same, and calling
                again is safe.
        """
        lost: Exception | None = None
        for _ in range(_TRIES):
            try:
                return self._submit(job)
            except LOST_REPLIES as error:
                lost = error
        unsure = "it may run all the same; submitting it again is safe, since its id stays the same"
        raise ClusterError(f"{self.address}: no reply about {job.submission_id}: {last_line(lost)}; {unsure}") from lost

    def _submit(self, job: JobRequest) -> bool:
        with named(self.address, f"refused {job.submission_id}", passing=LOST_REPLIES):
            try:
                self._client.submit_job(
                    entrypoint=job.entrypoint,
                    submission_id=job.submission_id,
                    runtime_env=job.runtime_env,
                    metadata=dict(job.metadata),
                    entrypoint_num_cpus=job.num_cpus,
                    entrypoint_resources=dict(job.resources) or None,
                )
            except RuntimeError:
                # Ray refuses an id that it knows in the same way in which it reports its own troubles.
                if self.word(job.submission_id) is None:
                    raise
                return False
            return True

    def word(self, submission_id: str) -> RayWord | None:
        """Return what the cluster says of a job, None when it does not know it, as after the loss of its head.

        Raises:
            ClusterError: It gives no answer.
        """
        with named(self.address, f"does not tell about {submission_id}"):
            try:
                info = self._client.get_job_info(submission_id)
            except RuntimeError as error:
                if _MISSING in str(error):
                    return None
                raise
        return RayWord(str(info.status), info.message or "")

    def stop(self, submission_id: str) -> bool:
        """Have Ray end a job: SIGTERM to all its processes, and SIGKILL to what is left of them after 3 s.

        Returns:
            False when there was nothing to end: it is over, or the cluster does not know it.

        Raises:
            ClusterError: It gives no answer.
        """
        word = self.word(submission_id)
        if word is None or word.ended:
            return False
        with named(self.address, f"does not stop {submission_id}"):
            return bool(self._client.stop_job(submission_id))
