"""What replies of agents that are somebody else's code have in common: a response around a text, a usable reward."""

from __future__ import annotations

import math
import time
from typing import Any

from gym_ray.agents.failures import AGENT_RUN_ERROR
from gym_ray.errors import AgentError

__all__ = ["checked_reward", "message_response"]


def checked_reward(agent: str, reward: Any) -> float | int | None:
    """Return ``reward`` if it can be one.

    Args:
        agent: Name of the agent, for the message.
        reward: What the agent gave.

    Raises:
        AgentError: It is neither a finite number nor null, which says unmeasured.
    """
    if reward is None:
        return None
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        problem = f"agent {agent}: reward is {reward!r}; it must be a finite number or null"
        raise AgentError(AGENT_RUN_ERROR, problem)
    return reward


def message_response(text: str, rollout_id: str, *, cut: str | None = None) -> dict[str, Any]:
    """Return a Responses-shaped object around a text; its id is the attempt's, so it can be no model call's.

    Args:
        text: Text of the one message.
        rollout_id: Id of the attempt.
        cut: Why the text is not whole; None when it is. The response is ``incomplete`` then.
    """
    status = "completed" if cut is None else "incomplete"
    message = {
        "id": f"msg_agent_{rollout_id}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    return {
        "id": f"resp_agent_{rollout_id}",
        "object": "response",
        "created_at": time.time(),
        "status": status,
        "incomplete_details": None if cut is None else {"reason": cut},
        "model": None,
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
