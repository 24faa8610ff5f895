"""Derives turns from captured calls that an invocation owns exactly (D93, D95)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gym_ray.evidence.trajectory.splitting import answer_of, question_of

__all__ = ["derived_turns"]


def derived_turns(
    task_id: str,
    rollout_id: str,
    calls: Iterable[dict[str, Any]],
    owners: Iterable[str | None],
    *,
    resolved: bool | None,
) -> list[dict[str, Any]]:
    """Return one turn for each owned call that has a response, in capture order, numbered from 1 in each invocation.

    Args:
        task_id: Task of the trajectory.
        rollout_id: Rollout of the trajectory.
        calls: The captured calls as the trajectory holds them, in capture order.
        owners: For each call the invocation that owns it (D77), None when nobody does.
        resolved: Whether the task was resolved, None when nobody said; the last turn gets it.
    """
    turns: list[dict[str, Any]] = []
    last_numbers: dict[str, int] = {}
    steps: dict[str, int] = {}
    for call, owner in zip(calls, owners, strict=True):
        if owner is None or call["response"] is None:
            continue
        answer, reasoning, tool_calls = answer_of(call["response"])
        last_numbers[owner] = number = last_numbers.get(owner, 0) + 1
        turns.append(
            {
                "invocation_id": owner,
                "task_id": task_id,
                "rollout_id": rollout_id,
                "turn_no": number,
                "timestamp": _time(call),
                "question": question_of(call["request"]),
                "answer": answer,
                "reasoning_content": reasoning,
                "resolved": None,
                "step_count": steps.get(owner, 0),
                "model_calls": [_reference(call)],
            }
        )
        steps[owner] = steps.get(owner, 0) + tool_calls
    if turns and resolved is not None:
        turns[-1]["resolved"] = resolved
    return turns


def _time(call: dict[str, Any]) -> float:
    started, completed = call["started_at"], call["completed_at"]
    if started is None:
        started = completed
    return 0.0 if started is None else float(started)


def _reference(call: dict[str, Any]) -> dict[str, Any]:
    metadata = call["response_metadata"]
    return {
        "model_call_id": call["model_call_id"],
        "model_ref": metadata["model_ref"],
        "response_id": metadata["response_id"],
    }
