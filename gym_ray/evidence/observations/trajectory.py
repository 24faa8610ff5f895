"""``ng_trajectory`` 1.0: what a reader of a finished record gets, and what an agent may bring itself.

A trajectory that an agent brings is the base onto which captured calls and observations are laid.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StrictStr, model_validator

from gym_ray.evidence.observations.bundle import check_unique
from gym_ray.evidence.observations.fields import Amount, Count, ModelServerRef, Number, Observed, Opaque
from gym_ray.evidence.observations.records import (
    AgentInvocation,
    ModelCallRef,
    ObservationGap,
    ToolCallObservation,
)

__all__ = [
    "TrajectoryModelCall",
    "TrajectoryRecord",
    "TrajectoryResponseMetadata",
    "TrajectoryTokenStats",
    "TrajectoryToolCall",
    "TrajectoryTurn",
]


class TrajectoryToolCall(ToolCallObservation):
    """A tool call with what it gave back (D71).

    Attributes:
        output: Output of the tool, as the model got it.
    """

    output: Opaque = None


class TrajectoryTokenStats(Observed):
    """Tokens of one call; null is unknown, never zero (D71)."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    total_tokens: Count | None = None
    cached_tokens: Count | None = None


class TrajectoryResponseMetadata(Observed):
    """What is known of one answer beside its payload (D71)."""

    response_id: StrictStr | None = None
    model_ref: ModelServerRef | None = None
    model: StrictStr | None = None
    dialect: StrictStr | None = None
    status_code: int | None = None
    response_status: StrictStr | None = None
    finish_reason: StrictStr | None = None
    upstream_attempted: bool | None = None
    response_source: Literal["upstream", "local"] | None = None
    upstream_status_code: int | None = None
    local_response_reason: StrictStr | None = None
    error_category: StrictStr | None = None
    latency_ttft_ms: Amount | None = None


class TrajectoryModelCall(Observed):
    """One model call (D71).

    Attributes:
        model_call_id: Id under which it was captured.
        started_at, completed_at: Seconds since the epoch.
        duration_ms: How long it took.
        request, response: What was sent and what came back.
        response_metadata: What is known of the answer beside its payload.
        token_stats: Its tokens.
    """

    model_call_id: StrictStr | None = None
    started_at: Number | None = None
    completed_at: Number | None = None
    duration_ms: Amount | None = None
    request: Opaque = None
    response: Opaque = None
    response_metadata: TrajectoryResponseMetadata = Field(default_factory=TrajectoryResponseMetadata)
    token_stats: TrajectoryTokenStats = Field(default_factory=TrajectoryTokenStats)


class TrajectoryTurn(Observed):
    """One turn of an invocation: a question to the model and its answer (D71).

    Attributes:
        invocation_id: Whose turn it is.
        task_id, rollout_id: Those of the trajectory.
        turn_no: Its number within the invocation, from 1.
        timestamp: Seconds since the epoch.
        question, answer, reasoning_content: What was asked, answered and thought.
        resolved: Whether the task was resolved with this turn.
        step_count: Tool calls so far.
        model_calls: The calls behind it.
    """

    invocation_id: StrictStr
    task_id: StrictStr
    rollout_id: StrictStr
    turn_no: Annotated[int, Field(ge=1)]
    timestamp: Number
    question: Opaque = None
    answer: Opaque = None
    reasoning_content: Opaque = None
    resolved: bool | None = None
    step_count: Count
    model_calls: list[ModelCallRef] = Field(default_factory=list)


class TrajectoryRecord(Observed):
    """A whole trajectory (D71, D73).

    Attributes:
        schema_version: Always ``1.0``.
        task_id, rollout_id: What ran.
        invocations, turns, model_calls, tool_calls: What happened.
        gaps: What is known to be missing.
    """

    schema_version: Literal["1.0"] = "1.0"
    task_id: StrictStr
    rollout_id: StrictStr
    invocations: list[AgentInvocation] = Field(default_factory=list)
    turns: list[TrajectoryTurn] = Field(default_factory=list)
    model_calls: list[TrajectoryModelCall] = Field(default_factory=list)
    tool_calls: list[TrajectoryToolCall] = Field(default_factory=list)
    gaps: list[ObservationGap] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_one_rollout(self) -> Self:
        check_unique((item.invocation_id for item in self.invocations), "invocation_id")
        check_unique((call.model_call_id for call in self.model_calls if call.model_call_id), "model_call_id")
        check_unique(((turn.invocation_id, turn.turn_no) for turn in self.turns), "turn (invocation_id, turn_no)")
        for turn in self.turns:
            if (turn.task_id, turn.rollout_id) != (self.task_id, self.rollout_id):
                problem = f"is of task {turn.task_id!r}, rollout {turn.rollout_id!r}"
                raise ValueError(f"turn {turn.turn_no} of invocation {turn.invocation_id!r} {problem}")
        return self
