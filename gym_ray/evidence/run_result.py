"""What running one attempt gave: an agent's reply, or a failure attributed to one boundary."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RunFailure", "RunResult"]


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Why an attempt gave no reply (D35).

    Attributes:
        failure_class: ``agent_run_error``, ``agent_request_failed``, ``agent_timeout``, ``engine_unavailable``,
            ``judge_failed``, ``worker_lost``, ``node_lost``, ``cancelled``.
        error_type: Class name of the error.
        message: What happened, one line.
        http_status: Status that was seen, or None.
        response_body: First 2,000 characters of the body that was seen, or None.
        traceback: Where an agent's own code raised: the innermost frames as text, or None.
    """

    failure_class: str
    error_type: str
    message: str
    http_status: int | None = None
    response_body: str | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of one attempt; exactly one of ``reply`` and ``failure`` is set.

    Attributes:
        reply: The agent's reply, a JSON object as bytes.
        failure: Why there is no reply.
        latency_ms: From just before the agent was called until it ended, monotonic clock (D31).
    """

    reply: bytes | None
    failure: RunFailure | None
    latency_ms: float
