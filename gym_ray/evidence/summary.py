"""The few figures of a finished record that leave the joiner; payloads never do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gym_ray.token_id_capture.delivery import TOKEN_METRICS_FIELD

__all__ = ["RolloutSummary", "summarise"]

_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """The figures of one record; None is unknown, never zero.

    Attributes:
        rollout_id: Capture key of the attempt.
        agent: Agent that ran it, "" when the row names none.
        task: Task index as text.
        reward: None when it is missing, no number, not finite, or masked by the verifier (``mask_sample``).
        masked: The rollout completed, but its reward is no measurement (D3).
        failure_class: None for a record of the main output; short and printable, whatever the reply gave as its class.
        num_calls: Captured calls, None when capture is off or could not be attached.
        tokens_in, tokens_out, tokens_reasoning, tokens_total, cached_tokens: Sums over the calls.
        call_latency_ms: Sum over the calls.
        latency_ms: The whole run (D31).
        gap_codes: Codes of the capture's gaps, in order.
        token_mask_reasons: Why its tokens cannot be trained on, none when they can; None when no tokens were looked at.
    """

    rollout_id: str
    agent: str
    task: str
    reward: float | None
    masked: bool
    failure_class: str | None
    num_calls: int | None
    tokens_in: int | None
    tokens_out: int | None
    tokens_reasoning: int | None
    tokens_total: int | None
    cached_tokens: int | None
    call_latency_ms: float | None
    latency_ms: float
    gap_codes: tuple[str, ...]
    token_mask_reasons: tuple[str, ...] | None = None


def summarise(
    record: Mapping[str, Any], attachment: Mapping[str, Any] | None, rollout_id: str, latency_ms: float
) -> RolloutSummary:
    """Return the figures of a finished record.

    Args:
        record: The record.
        attachment: The capture that was attached to it, None without one. What a reply itself brought under that name
            is no evidence and does not count.
        rollout_id: Capture key of the attempt.
        latency_ms: The whole run (D31).
    """
    ref, failure_class = record.get("agent_ref"), record.get("_ng_failure_class")
    metrics = {} if attachment is None else attachment["metrics"]
    gaps = () if attachment is None else attachment.get("gaps", ())
    masked = bool(record.get("mask_sample"))
    return RolloutSummary(
        rollout_id=rollout_id,
        agent=str(ref.get("name", "")) if isinstance(ref, dict) else "",
        task=str(record.get("_ng_task_index")),
        reward=None if masked or failure_class is not None else _measured(record.get("reward")),
        masked=masked,
        failure_class=None if failure_class is None else _name_of(failure_class),
        num_calls=metrics.get("num_calls"),
        tokens_in=metrics.get("tokens_in"),
        tokens_out=metrics.get("tokens_out"),
        tokens_reasoning=metrics.get("tokens_reasoning"),
        tokens_total=metrics.get("tokens_total"),
        cached_tokens=metrics.get("cached_tokens"),
        call_latency_ms=metrics.get("latency_total_ms"),
        latency_ms=latency_ms,
        gap_codes=tuple(gap["code"] for gap in gaps),
        token_mask_reasons=_mask_reasons(record.get(TOKEN_METRICS_FIELD)),
    )


def _mask_reasons(tokens: object) -> tuple[str, ...] | None:
    if not isinstance(tokens, Mapping):
        return None
    reasons = tokens.get("mask_reasons")
    return tuple(map(_name_of, reasons)) if isinstance(reasons, list) else ()


def _name_of(failure_class: object) -> str:
    """Return a reply's own failure class as a name that can be counted and printed; the record keeps it as it came."""
    if not isinstance(failure_class, str):
        return f"unnamed ({type(failure_class).__name__})"
    name = failure_class if len(failure_class) <= _LONGEST_NAME else failure_class[:_LONGEST_NAME] + "…"
    return name if name.isprintable() else ascii(name)


def _measured(reward: object) -> float | None:
    if not isinstance(reward, int | float):
        return None
    try:
        value = float(reward)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None
