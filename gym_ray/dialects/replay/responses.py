"""Tells a whole Responses answer as its stream (A141-A143, W10, W25)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects.failures import response_error
from gym_ray.dialects.response_frames import ResponseFrames
from gym_ray.dialects.synthesis.writer import fresh_id

__all__ = ["failure", "replay"]

_COMPLETED = "completed"
_TERMINALS: Final[Mapping[Any, str]] = {
    _COMPLETED: "response.completed",
    "failed": "response.failed",
    "cancelled": "response.failed",
}
_UNFINISHED = "response.incomplete"  # incomplete, and every status that does not say that the answer is whole
_ID_PREFIXES: Final[Mapping[Any, str]] = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
}


def replay(answer: Mapping[str, Any], *, incomplete_event: bool) -> list[bytes]:
    """Return the events of an answer; see :func:`gym_ray.dialects.replay.replay_frames`.

    A missing status becomes ``completed``. An item without id gets one, because events name their item by it.
    """
    status = answer.get("status") or _COMPLETED
    listed = answer.get("output")
    items = [_with_id(item) for item in listed] if isinstance(listed, list) else []
    whole = {**answer, "status": status, **({"output": items} if isinstance(listed, list) else {})}
    frames = ResponseFrames()
    events = frames.begin({**answer, "status": "in_progress", "output": []})
    for index, item in enumerate(items):
        if isinstance(item, Mapping):
            events += frames.item(index, item)
    terminal = _TERMINALS.get(status, _UNFINISHED) if isinstance(status, str) else _UNFINISHED
    if terminal == _UNFINISHED and not incomplete_event:
        terminal = _TERMINALS[_COMPLETED]
    return [*events, frames.frame(terminal, response=whole)]


def failure(status: int, message: str) -> list[bytes]:
    """Return the two events of an answer that never came to be (A142)."""
    frames = ResponseFrames()
    error = response_error(status, message)
    failed = {"id": fresh_id("resp_"), "object": "response", "status": "failed", "output": [], "error": error}
    opened = frames.frame("response.created", response={**failed, "status": "in_progress"})
    return [opened, frames.frame("response.failed", response=failed)]


def _with_id(item: Any) -> Any:
    if not isinstance(item, Mapping) or item.get("id"):
        return item
    kind = item.get("type")
    return {**item, "id": fresh_id(_ID_PREFIXES.get(kind, "item_") if isinstance(kind, str) else "item_")}
