"""What an agent can say about one rollout: who called the model, which tools and sandboxes ran, what was compacted.

An agent refers to model calls by their identifiers alone. Nothing here may tell by time or position whose a call was.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, StrictStr, model_validator

from gym_ray.evidence.observations.conversation import Conversation
from gym_ray.evidence.observations.fields import Amount, Count, ModelServerRef, Number, Observed

__all__ = [
    "AgentInvocation",
    "ContextCompactionObservation",
    "ModelCallRef",
    "ObservationGap",
    "SandboxObservation",
    "ToolCallObservation",
]


class ModelCallRef(Observed):
    """Names one model call: by ``model_call_id``, or by ``model_ref`` together with ``response_id`` (D71, D74).

    Attributes:
        model_call_id: Id under which the call was captured.
        model_ref: The model server that answered.
        response_id: ``id`` of the answer.
    """

    model_call_id: StrictStr | None = None
    model_ref: ModelServerRef | None = None
    response_id: StrictStr | None = None

    @model_validator(mode="after")
    def _names_a_call(self) -> Self:
        if self.model_call_id or (self.model_ref is not None and self.response_id):
            return self
        raise ValueError("a reference needs a model_call_id, or both a model_ref and a response_id")


class AgentInvocation(Observed):
    """One run of one agent within a rollout; a rollout with sub-agents has several (D71).

    Attributes:
        invocation_id: Its id, unique within the rollout.
        parent_invocation_id: The invocation that started it; it need not be reported.
        spawned_by_tool_call_id: The tool call of the parent that started it.
        status: How it ended.
        duration_ms: How long it ran.
        error_type: Class of the error that ended it.
        model_calls: The calls that it made, in its own order.
        conversation: What was said, as Responses input items.
    """

    kind: Literal["agent_invocation"] = "agent_invocation"
    invocation_id: StrictStr
    parent_invocation_id: StrictStr | None = None
    spawned_by_tool_call_id: StrictStr | None = None
    status: Literal["completed", "failed", "incomplete", "unknown"] = "unknown"
    duration_ms: Amount | None = None
    error_type: StrictStr | None = None
    model_calls: list[ModelCallRef] = Field(default_factory=list)
    conversation: Conversation = Field(default_factory=list)


class ToolCallObservation(Observed):
    """One execution of a tool (D71).

    Attributes:
        invocation_id: The invocation that asked for it; it need not be reported.
        tool_call_id: ``call_id`` of the function call.
        sandbox_id: The sandbox in which it ran.
        tool_name: Name of the tool.
        started_at, completed_at: Seconds since the epoch.
        duration_ms: How long it took; not checked against the times.
        timing_source: Who measured: the executor of the tool, an artefact that was left, or the harness around both.
        status: How it ended.
        error_type: Class of its error, or ``http_<status>``.
    """

    kind: Literal["tool_call"] = "tool_call"
    invocation_id: StrictStr
    tool_call_id: StrictStr
    sandbox_id: StrictStr | None = None
    tool_name: StrictStr | None = None
    started_at: Number | None = None
    completed_at: Number | None = None
    duration_ms: Amount | None = None
    timing_source: Literal["executor", "artifact", "harness"] | None = None
    status: Literal["completed", "failed", "timeout", "cancelled", "incomplete", "unknown"] = "unknown"
    error_type: StrictStr | None = None

    @model_validator(mode="after")
    def _ends_after_it_began(self) -> Self:
        if self.started_at is not None and self.completed_at is not None and self.completed_at < self.started_at:
            raise ValueError(f"completed_at {self.completed_at} is before started_at {self.started_at}")
        return self


class SandboxObservation(Observed):
    """What one sandbox did and used; figures are measured, never limits (D71).

    Attributes:
        role: Whose sandbox it was.
        provider: Who ran it.
        sandbox_id: Its id.
        outcome: How it ended.
        exit_code: Exit code of its main process.
        wall_time_s, cpu_time_s: Time that it used.
        peak_memory_mib: The most memory that it held.
        resource_usage_source: Who measured.
        error_type: Class of its error.
    """

    kind: Literal["sandbox"] = "sandbox"
    role: Literal["agent", "verifier", "environment"]
    provider: StrictStr | None = None
    sandbox_id: StrictStr | None = None
    outcome: Literal["completed", "failed", "timeout", "oom", "sandbox_error", "cancelled", "unknown"] = "unknown"
    exit_code: int | None = None
    wall_time_s: Amount | None = None
    cpu_time_s: Amount | None = None
    peak_memory_mib: Amount | None = None
    resource_usage_source: StrictStr | None = None
    error_type: StrictStr | None = None


class ContextCompactionObservation(Observed):
    """A shortening of an invocation's context (D71). It never owns a model call (D78).

    Attributes:
        invocation_id: Whose context it was.
        observed_at: Seconds since the epoch.
        trigger: What set it off.
        tokens_before, tokens_after: Size of the context.
        outcome: How it ended.
        summary: Text that stands for what was left out.
        first_kept_item_id: First item that stayed.
        before_model_call, after_model_call: The calls around it.
        model_calls: The calls that made the summary.
    """

    kind: Literal["context_compaction"] = "context_compaction"
    invocation_id: StrictStr
    observed_at: Number | None = None
    trigger: StrictStr | None = None
    tokens_before: Count | None = None
    tokens_after: Count | None = None
    outcome: Literal["completed", "failed", "aborted", "unknown"] = "unknown"
    summary: StrictStr | None = None
    first_kept_item_id: StrictStr | None = None
    before_model_call: ModelCallRef | None = None
    model_calls: list[ModelCallRef] = Field(default_factory=list)
    after_model_call: ModelCallRef | None = None


class ObservationGap(Observed):
    """Something that is known to be missing (D71).

    Attributes:
        code: What is missing; see :mod:`gym_ray.evidence.observations.gaps`. Names of your own are welcome.
        invocation_id: The invocation that it belongs to.
        detail: Which one, in a form of its code.
    """

    code: StrictStr
    invocation_id: StrictStr | None = None
    detail: StrictStr | None = None
