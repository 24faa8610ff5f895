"""A generation request and its result, free of any dialect: what an engine of our own reads and gives.

The readers in ``gym_ray.dialects.synthesis`` make a :class:`PromptRequest` from each dialect's body and dress a
:class:`Generation` as each dialect's answer. Nothing here knows how a dialect or a chat template looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

__all__ = [
    "Finish",
    "Generation",
    "GenerationEvent",
    "GenerationUsage",
    "PromptRequest",
    "ResponseFormat",
    "Role",
    "Sampling",
    "TextDelta",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "Turn",
    "merge_turns",
]

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One whole call of a tool.

    Attributes:
        call_id: Id that the tool's result names.
        name: The tool.
        arguments: JSON text exactly as it was generated or sent.
    """

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the conversation: an assistant's text comes before its tool calls."""

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; ``parameters`` is a JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """``auto``: text or a call; ``none``: text; ``required``: a call, of ``name`` when given."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """The text must be JSON: of this schema, or any object when ``schema`` is None."""

    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens; None means that the client left it open."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """All that decides a generation; ``turns`` is never empty."""

    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    response_format: ResponseFormat | None = None
    sampling: Sampling = Sampling()


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    STOP_SEQUENCE = "stop_sequence"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class GenerationUsage:
    """Token counts from the engine's own counters; ``cached_tokens`` is the part of the prompt it did not compute."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that may be shown to the client now; never empty."""

    text: str


GenerationEvent = TextDelta | ToolCall
"""What flows while a generation runs: text as it comes, a call once it is whole."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished generation.

    Attributes:
        text: All text, which equals the joined deltas of its stream.
        tool_calls: Whole calls; one that was cut off is not handed out.
        finish: Why it ended.
        stop_sequence: The client's stop text that ended it.
        usage: The engine's counters.
        prompt_token_ids: The exact prompt that the engine was given.
        token_ids: The exact generated ids, or None when the engine did not report every one of them.
        log_probs: One natural log probability per generated id, the model's own before any grammar, or None when one
            is missing.
        constrained: A grammar bounded the choice, so log probabilities are not those of the drawing distribution.
    """

    text: str
    tool_calls: tuple[ToolCall, ...]
    finish: Finish
    usage: GenerationUsage
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...] | None
    log_probs: tuple[float, ...] | None
    constrained: bool
    stop_sequence: str | None = None


def merge_turns(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Join neighbouring assistant turns into one, so that every dialect tells the same conversation."""
    merged: list[Turn] = []
    for turn in turns:
        last = merged[-1] if merged else None
        if last is None or turn.role != "assistant" or last.role != "assistant":
            merged.append(turn)
            continue
        text = "\n".join(part for part in (last.text, turn.text) if part)
        merged[-1] = replace(last, text=text, tool_calls=last.tool_calls + turn.tool_calls)
    return tuple(merged)
