"""Workers and joiners in one process, for tests of collections without a cluster.

:class:`FakePort` keeps the promises of :class:`~gym_ray.rollouts.ports.RolloutPort`, counts what it was asked, and does
what a script says for an attempt: answer, fail, lose its process, hang until it is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gym_ray import exact_json
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.evidence.summary import RolloutSummary
from gym_ray.rollouts.joining import Joiner
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest, Lost, Placement, ReplyHandle
from gym_ray.rollouts.run_files.revoked_tries import JoinTry
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_paths import OutputFile

__all__ = ["FakePort", "answer", "by_task", "failing", "hang"]

Script = Callable[[AttemptJob], Awaitable[RunResult | Lost]]
JoinScript = Callable[[AttemptJob, JoinRequest], Awaitable[Lost | None]]


async def answer(job: AttemptJob) -> RunResult:
    """Answer with a reward of 1."""
    reply = {"reward": 1.0, "response": {"id": job.rollout_id, "output": []}}
    return RunResult(exact_json.dumps(reply), None, 5.0)


def by_task(scripts: Mapping[str, Script]) -> Script:
    """Return a script that does for each task what its own says, and answers the rest."""

    async def script(job: AttemptJob) -> RunResult | Lost:
        return await scripts.get(job.rollout_id.split("-")[0], answer)(job)

    return script


def failing(failure_class: str) -> Script:
    """Return a script that fails with a class of failure."""

    async def fail(job: AttemptJob) -> RunResult:
        return RunResult(None, RunFailure(failure_class, "ScriptedError", f"{job.rollout_id} was told to fail"), 5.0)

    return fail


async def hang(job: AttemptJob) -> RunResult:
    """Never answer."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError(job.rollout_id)


class FakePort:
    """A port over plain coroutines.

    Args:
        outputs: Where finished records go, None to store none.
        script: What an attempt does.
        join_script: Called before a join is carried out; it may raise, or say that the reply is lost.
        joiner: Joins in earnest; without one a small record is stored.
        capacity: Runs at once.

    Attributes:
        events: ``(what, rollout_id)`` in order, ``what`` being clear, run, ran, cancelled, join or joined.
        most_running: The largest number of runs at once.
        capacity: Runs at once; a test may change it, as nodes that come and go do.
    """

    def __init__(
        self,
        outputs: RunOutputs | None,
        script: Script = answer,
        *,
        join_script: JoinScript | None = None,
        joiner: Joiner | None = None,
        capacity: int = 4,
        keep_events: bool = True,
    ) -> None:
        self._outputs, self._script, self._join_script = outputs, script, join_script
        self._keep_events, self._joiner = keep_events, joiner
        self.events: list[tuple[str, str]] = []
        self.requests: list[tuple[str, JoinRequest]] = []
        self.running = 0
        self.most_running = 0
        self.capacity = capacity
        self._placements: dict[str, Placement] = {}

    def placements(self) -> Sequence[Placement]:
        """Return what runs, oldest first."""
        return list(self._placements.values())

    def times(self, what: str) -> Counter[str]:
        """Return how often something happened to each rollout id."""
        return Counter(rollout_id for event, rollout_id in self.events if event == what)

    def _note(self, what: str, rollout_id: str) -> None:
        if self._keep_events:
            self.events.append((what, rollout_id))

    async def clear(self, rollout_ids: Sequence[str]) -> None:
        """Note that the captures were cleared."""
        for rollout_id in rollout_ids:
            self._note("clear", rollout_id)

    async def run(self, job: AttemptJob) -> ReplyHandle | Lost:
        """Do what the script says."""
        self._note("run", job.rollout_id)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self._placements[job.rollout_id] = Placement(job.rollout_id, job.attempt, "worker", "node", time.time())
        try:
            ended = await self._script(job)
        except asyncio.CancelledError:
            self._note("cancelled", job.rollout_id)
            raise
        finally:
            self.running -= 1
            del self._placements[job.rollout_id]
        self._note("ran", job.rollout_id)
        return ended if isinstance(ended, Lost) else ReplyHandle(ended)

    async def join(self, job: AttemptJob, result: ReplyHandle | RunResult, request: JoinRequest) -> JoinOutcome | Lost:
        """Store a small record: the reply or the failure with the attempt's id."""
        self._note("join", job.rollout_id)
        if self._keep_events:
            self.requests.append((job.rollout_id, request))
        lost = await self._join_script(job, request) if self._join_script is not None else None
        if lost is not None:
            return lost
        value = result.value if isinstance(result, ReplyHandle) else result
        if not isinstance(value, RunResult):
            raise TypeError(f"{job.rollout_id}: not a result: {value!r}")
        if self._joiner is not None:
            outcome = await self._joiner.join(job, value, request)
        else:
            outcome = self._store(job, value, request)
        self._note("joined", job.rollout_id)
        return outcome

    def _store(self, job: AttemptJob, result: RunResult, request: JoinRequest) -> JoinOutcome:
        failure_class = None if result.failure is None else result.failure.failure_class
        record = exact_json.loads_object(result.reply or b"{}") or {}
        row = exact_json.loads_object(job.row) or {}
        record |= {key: value for key, value in row.items() if key.startswith("_ng_")}
        if failure_class is not None:
            record["_ng_failure_class"] = failure_class
        failure_class = record.get("_ng_failure_class")  # a reply may name one as well (D37)
        if request.terminal:
            record["_ng_failure_terminal"] = True
        written = None
        if self._outputs is not None and not record.get("_ng_no_persist"):
            written = self._outputs.find(job.rollout_id, request.mark) if request.retry else None
            file: OutputFile = "main" if failure_class is None else "failures"
            of_try = JoinTry(job.rollout_id, request.number)
            written = written or self._outputs.append(file, exact_json.dumps(record), of_try=of_try)
        return JoinOutcome(written, _summary(job, record, failure_class, result.latency_ms))


def _summary(
    job: AttemptJob, record: Mapping[str, Any], failure_class: str | None, latency_ms: float
) -> RolloutSummary:
    reasons = record.get("token_mask_reasons")
    return RolloutSummary(
        rollout_id=job.rollout_id,
        agent=job.agent,
        task=job.rollout_id.split("-")[0],
        reward=record.get("reward"),
        masked=False,
        failure_class=failure_class,
        num_calls=None,
        tokens_in=None,
        tokens_out=None,
        tokens_reasoning=None,
        tokens_total=None,
        cached_tokens=None,
        call_latency_ms=None,
        latency_ms=latency_ms,
        gap_codes=(),
        token_mask_reasons=None if reasons is None else tuple(reasons),
    )
