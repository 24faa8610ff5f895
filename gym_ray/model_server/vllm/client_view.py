"""Shows a client of a captured call exactly what it would have seen without the capture.

The engine is asked for ids, log probabilities and usage that the client may not have asked for. They are set to null
where the server itself writes null for those who do not ask, and left out where only a patched server has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gym_ray.token_id_capture.adapters.vllm import EXPERTS_FIELD
from gym_ray.token_id_capture.records import TOKEN_ARRAYS

__all__ = ["ClientView"]

_ID_LISTS: Final = re.compile(
    rb'("(?:%s|token_ids)"\s*:\s*)\[[^\[\]"]*(?:\]|\Z)' % "|".join(TOKEN_ARRAYS).encode("ascii")
)
"""A list of numbers that is a member for tokens, cut off or not; in a text, its quotes would be escaped."""


@dataclass(frozen=True, slots=True)
class ClientView:
    """What one Chat request asked to see.

    Attributes:
        ids: Token ids.
        log_probs: Log probabilities.
        top_log_probs: Alternatives beside each of them.
        usage: The chunk with the usage at the end of a stream.
        experts: The routing of experts.
    """

    ids: bool = False
    log_probs: bool = False
    top_log_probs: int = 0
    usage: bool = False
    experts: bool = False

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> ClientView:
        """Read a request, with the server's settings as defaults; members of unexpected types ask for nothing."""
        ids, top, options = body.get("return_token_ids") is True, body.get("top_logprobs"), body.get("stream_options")
        return cls(
            ids=ids,
            log_probs=body.get("logprobs") is True,
            top_log_probs=top if type(top) is int else 0,
            usage=isinstance(options, Mapping) and options.get("include_usage") is True,
            experts=ids or body.get("routed_experts_prompt_start") is not None,
        )

    def strip(self, answer: dict[str, Any]) -> bool:
        """Take out of an answer, or of a chunk of one, what was not asked for; return whether anything was there."""
        found = not self.ids and _to_null(answer, "prompt_token_ids")
        choices = answer.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                found = self._strip_choice(choice) or found
        return found

    def hides(self, chunk: Mapping[str, Any], *, stripped: bool) -> bool:
        """Whether a chunk is there for the capture alone.

        It is the one with the usage, or one that carries ids whose text a parser holds back: the server sends neither
        to those who do not ask.

        Args:
            chunk: The chunk, what was not asked for taken out of it.
            stripped: Whether there was anything to take out.
        """
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            return False
        if not choices:
            return not self.usage and isinstance(chunk.get("usage"), Mapping)
        return stripped and not self.ids and all(_is_silent(choice) for choice in choices)

    def strip_unreadable(self, text: bytes) -> bytes:
        """Return what cannot be parsed, without lists of ids that can be made out in it and nobody asked for."""
        return text if self.ids else _ID_LISTS.sub(rb"\1null", text)

    def _strip_choice(self, choice: dict[str, Any]) -> bool:
        found = False
        if not self.ids:
            found = _strip_message(choice, TOKEN_ARRAYS)
            found = _to_null(choice, "token_ids") or found
        if not self.log_probs:
            found = _to_null(choice, "logprobs") or found
        if not self.experts:
            found = _strip_message(choice, (EXPERTS_FIELD,)) or found
            found = _to_null(choice, EXPERTS_FIELD) or found
        return found


def _to_null(members: dict[str, Any], name: str) -> bool:
    if members.get(name) is None:
        return False
    members[name] = None
    return True


def _strip_message(choice: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    """Take members that only patched servers have out of a choice's message, or out of what a chunk adds to one."""
    found = False
    for place in ("message", "delta"):
        found = _without_fields(choice.get(place), names) or found
    return found


def _without_fields(message: object, names: tuple[str, ...]) -> bool:
    if not isinstance(message, dict):
        return False
    carried = [name for name in names if name in message]
    for name in carried:
        del message[name]
    return bool(carried)


def _is_silent(choice: object) -> bool:
    """Whether a choice of a chunk says nothing: no text, no end, no log probabilities."""
    if not isinstance(choice, Mapping) or choice.get("delta") != {}:
        return False
    rest = {name: value for name, value in choice.items() if name not in ("index", "delta")}
    return not any(value is not None for value in rest.values())
