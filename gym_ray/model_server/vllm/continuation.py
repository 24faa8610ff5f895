"""Finds where a conversation goes on behind its parent's exact tokens, from how the server renders it.

Rendering a history anew may give other tokens for the same text. So only what follows the parent's turn is taken from
the rendering; the parent's own tokens replace everything before it. What the template puts behind the end-of-turn token
must be known exactly: with a piece of it doubled or missing, the prompt would be one that the model never sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gym_ray.token_id_capture.exact_tokens import ParentTokens
from gym_ray.token_id_capture.token_arrays import TokenArray, join_tokens, starts_with

__all__ = ["TurnSuffix", "common_end", "continued", "last_turn", "may_continue", "turn_only", "with_placeholder_answer"]

_ENDS: Final = ("eos", "")
"""How a parent may have ended. "" is a parent with tool calls; rendering then proves what its last token is."""
_PLACEHOLDER_ANSWER: Final = "These words stand in for an answer."
_PLAIN: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (None, 1),
    "documents": (None, []),  # templates put them in front, where the parent's tokens stand in for everything
    "add_generation_prompt": (None, True),
    "continue_final_message": (None, False),
    "echo": (None, False),
    "use_beam_search": (None, False),
    "prompt_logprobs": (None,),
    "truncate_prompt_tokens": (None,),
}


@dataclass(frozen=True, slots=True)
class TurnSuffix:
    """What a template puts behind an end-of-turn token.

    Attributes:
        end: The token.
        behind: The tokens that follow it, as their bytes in a uint64 array; hashable.
    """

    end: int
    behind: bytes

    @classmethod
    def of(cls, turn: TokenArray, end: int) -> TurnSuffix | None:
        """Return what stands behind the last ``end`` of a rendered conversation; None when there is no ``end``."""
        found = (turn == end).nonzero()[0]
        return cls(end, turn[int(found[-1]) + 1 :].astype("<u8").tobytes()) if found.size else None

    @property
    def size(self) -> int:
        """How many tokens follow the end."""
        return len(self.behind) // 8


def may_continue(body: Mapping[str, Any], parent: ParentTokens) -> bool:
    """Whether a request is a plain one and its parent ended a turn by itself."""
    if parent.ended_by not in _ENDS or not parent.generated or parent.generated > parent.token_ids.size:
        return False
    return all(body.get(name) in wanted for name, wanted in _PLAIN.items())


def last_turn(body: Mapping[str, Any]) -> int | None:
    """Return the index of the assistant message that a parent's answer ends with; None when it cannot be told.

    It is the last one, or None if the last one is empty: an empty turn does not change what a conversation is
    recognised by (B37), so the parent's answer may be an earlier turn, and what follows that would be lost.
    """
    messages = body.get("messages")
    for index, message in reversed([*enumerate(messages)] if isinstance(messages, list) else []):
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            return index if _says_something(message) else None
    return None


def _says_something(message: Mapping[str, Any]) -> bool:
    if message.get("tool_calls") or message.get("function_call"):
        return True
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    return any(part.get("text") != "" if isinstance(part, Mapping) else bool(part) for part in parts)


def turn_only(body: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Return the request cut behind message ``at``, without the start of another turn."""
    return {**body, "messages": body["messages"][: at + 1], "add_generation_prompt": False}


def with_placeholder_answer(body: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Return the request cut behind message ``at``, with a placeholder as the text of that message.

    What a template puts behind a turn does not depend on the turn's text. So what this rendering and the true one have
    in common behind the end-of-turn token comes from the template.
    """
    other = turn_only(body, at)
    other["messages"] = [*other["messages"][:-1], {"role": "assistant", "content": _PLACEHOLDER_ANSWER}]
    return other


def common_end(one: TokenArray, other: TokenArray) -> int:
    """Return how many tokens two renderings have in common at their ends."""
    size = min(one.size, other.size)
    differing = (one[one.size - size :] != other[other.size - size :]).nonzero()[0]
    return size - 1 - int(differing[-1]) if differing.size else size


def continued(parent: ParentTokens, whole: TokenArray, turn: TokenArray, suffix: TurnSuffix) -> TokenArray | None:
    """Return the prompt: the parent's tokens, the template's suffix, and what follows the parent's turn.

    Args:
        parent: The proven parent.
        whole: The whole conversation, rendered.
        turn: The conversation up to the parent's turn, rendered.
        suffix: What stands behind the end of the turn.

    Returns:
        None when the turn is no exact prefix of the whole.
    """
    if not starts_with(whole, turn):
        return None
    return join_tokens([parent.token_ids, whole[turn.size - suffix.size :]])
