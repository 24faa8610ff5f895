"""What a tool loop did, and the trajectory that it reports of itself (D145).

The log holds items and numbers only; nothing is copied while the loop runs. The trajectory says what the agent knows.
Which captured call is whose follows from the identifiers in it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from gym_ray.evidence.observations import gap, validated_conversation, validated_trajectory
from gym_ray.evidence.observations.gaps import CONVERSATION_UNAVAILABLE, REFERENCE_UNAVAILABLE, RESOLUTION_UNAVAILABLE

__all__ = ["ROOT", "LoopLog", "Step", "ToolRun", "producer_trajectory", "resolve"]

ROOT = "root"
"""Id of the one invocation of a loop."""


@dataclass(slots=True)
class Step:
    """One model call and the tools that it asked for.

    Attributes:
        asked_at: When the model was asked, in seconds since the epoch.
        asked: How many items of the conversation it was sent.
        answered: How many items it produced; they follow.
        response_id: ``id`` of its answer, None when it had none.
        tools_run: Tools that were run so far, those of this step included.
    """

    asked_at: float
    asked: int
    answered: int = 0
    response_id: str | None = None
    tools_run: int = 0


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One function call that was executed, or answered without being executed.

    Attributes:
        call_id: ``call_id`` of the function call.
        name: Name of the tool.
        started_at: Seconds since the epoch.
        duration_ms: How long it took, by a clock that never steps.
        output: The text that the model was given.
        error_type: None when the tool answered with a success.
    """

    call_id: str
    name: str
    started_at: float
    duration_ms: float
    output: str
    error_type: str | None


@dataclass(slots=True)
class LoopLog:
    """What one loop did so far.

    Attributes:
        items: The conversation: the input and everything produced since, as it came.
        steps: The model calls, in order.
        tools: The tool calls, in order.
        incomplete: The loop was cut short: by the model's limits, by its own, or by an answer that says nothing.
    """

    items: list[Any] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    tools: list[ToolRun] = field(default_factory=list)
    incomplete: bool = False

    def ask(self, at: float) -> Step:
        """Open the next step: the model is about to be sent every item so far."""
        step = Step(at, len(self.items), tools_run=len(self.tools))
        self.steps.append(step)
        return step


def producer_trajectory(log: LoopLog, model_server: str, task_id: str, rollout_id: str) -> dict[str, Any]:
    """Return the trajectory of an ended loop, whole and valid (D71, D145); who resolved the task is not said yet.

    A conversation with an item that nobody can read is left out, and a gap says so; the turns show it as it came.

    Args:
        log: The ended loop.
        model_server: Name of the model server that it called.
        task_id: Id of its task (D84).
        rollout_id: Id of the attempt.
    """
    gaps = []
    try:
        items = conversation = validated_conversation(log.items)
    except ValidationError as error:
        items, conversation = log.items, []
        gaps.append(gap(CONVERSATION_UNAVAILABLE, ROOT, _first_of(error)))
    server = {"type": "responses_api_models", "name": model_server}
    turns = []
    for number, step in enumerate(log.steps, 1):
        if step.response_id is None:
            gaps.append(gap(REFERENCE_UNAVAILABLE, ROOT, f"turn:{number}"))
        refs = [] if step.response_id is None else [{"model_ref": server, "response_id": step.response_id}]
        ids = {"invocation_id": ROOT, "task_id": task_id, "rollout_id": rollout_id, "turn_no": number}
        turns.append({**ids, **_said(step, items), "model_calls": refs})
    root = {
        "invocation_id": ROOT,
        "status": "incomplete" if log.incomplete else "completed",
        "model_calls": [ref for turn in turns for ref in turn["model_calls"]],
        "conversation": conversation,
    }
    return validated_trajectory(
        {
            "task_id": task_id,
            "rollout_id": rollout_id,
            "invocations": [root],
            "turns": turns,
            "tool_calls": [_observed(run) for run in log.tools],
            "gaps": gaps,
        }
    )


def resolve(trajectory: dict[str, Any], reply: Mapping[str, Any]) -> None:
    """Write into a trajectory whether the verifier's reply calls the task resolved, or that it does not say (D145)."""
    resolved = reply.get("resolved")
    if isinstance(resolved, bool) and trajectory["turns"]:
        trajectory["turns"][-1]["resolved"] = resolved
    else:
        trajectory["gaps"].append(gap(RESOLUTION_UNAVAILABLE, ROOT))


def _said(step: Step, items: list[Any]) -> dict[str, Any]:
    output = items[step.asked : step.asked + step.answered]
    reasoning = [item for item in output if item.get("type") == "reasoning"]
    return {
        "timestamp": step.asked_at,
        "question": items[: step.asked],
        "answer": [item for item in output if item.get("type") != "reasoning"],
        "reasoning_content": reasoning or None,
        "step_count": step.tools_run,
    }


def _observed(run: ToolRun) -> dict[str, Any]:
    return {
        "invocation_id": ROOT,
        "tool_call_id": run.call_id,
        "tool_name": run.name,
        "started_at": run.started_at,
        "completed_at": run.started_at + run.duration_ms / 1000.0,
        "duration_ms": run.duration_ms,
        "timing_source": "executor",
        "status": "completed" if run.error_type is None else "failed",
        "error_type": run.error_type,
        "output": run.output,
    }


def _first_of(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    index, *path = first["loc"] or ("?",)
    return f"item {index}{''.join(f'.{part}' for part in path)}: {first['type']}"
