"""What a request says that matters for reading the tokens of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["RequestFacts"]

_GRAMMARS: Final = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structural_tag",
    "allowed_token_ids",
    "json_schema",
    "regex",
    "ebnf",
)
_FREE_FORMATS: Final = (None, "text")
_FREE_TOOL_CHOICES: Final = ("auto", "none")


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The members of a Chat request that decide how its answer is read.

    Attributes:
        stop_token_ids: Tokens at which the client wants to stop; stopping there does not end the model's turn.
        constrained: A grammar bounds the choice of tokens, while the log probs are the model's own.
        experts_start: Prompt tokens whose routing the client wants left out.
    """

    stop_token_ids: frozenset[int] = frozenset()
    constrained: bool = False
    experts_start: int = 0

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> RequestFacts:
        """Read a request; members of unexpected types are ignored."""
        stops = body.get("stop_token_ids")
        start = body.get("routed_experts_prompt_start")
        return cls(
            frozenset(stop for stop in stops if type(stop) is int) if isinstance(stops, list) else frozenset(),
            _is_constrained(body),
            start if type(start) is int and start > 0 else 0,
        )


def _is_constrained(body: Mapping[str, Any]) -> bool:
    wanted = body.get("response_format")
    if isinstance(wanted, Mapping) and wanted.get("type") not in _FREE_FORMATS:
        return True
    choice = body.get("tool_choice")
    if choice is not None and choice not in _FREE_TOOL_CHOICES:
        return True
    return any(body.get(name) for name in _GRAMMARS)
