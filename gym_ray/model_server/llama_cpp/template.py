"""The embedded model's chat template: turns become pieces, and pieces become the exact prompt ids.

Gemma's turn markers are control tokens. They come from here and from nowhere else: the text of a request is always
tokenised as plain text, so that nobody can close a turn or open another role by writing a marker into a message.

The weights that ship with the project are a base model, to which the end-of-turn marker means nothing. So each text
turn of such a model ends in a line feed (a blank line when a worked answer has several lines) before its marker, a
pattern that it does copy, and the grammar turns that line end into the marker
(see :mod:`gym_ray.model_server.llama_cpp.grammar`). A model that has learned the marker writes it right behind its
text, and so does the template for it: past turns must read as they were generated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, Literal

from gym_ray.dialects.neutral import PromptRequest, Tool, ToolCall, Turn

__all__ = ["CALL_CLOSE", "CALL_NAME", "CALL_OPEN", "END", "MODEL", "START", "Piece", "TurnEnd", "closing", "render"]

START: Final = "<start_of_turn>"
END: Final = "<end_of_turn>"
CALL_NAME: Final = '<tool_call>{"name": '
CALL_OPEN: Final = ', "arguments": '
CALL_CLOSE: Final = "}</tool_call>"

Piece = tuple[bool, str]
"""Whether this is a control token's name, and its text; each piece is tokenised on its own."""

MODEL: Final[Piece] = (False, "model\n")
"""What follows ``START`` where the model speaks."""

TurnEnd = Literal["line", "marker"]
"""How a text turn ends: a base model's ``line``, or the ``marker`` that an instruction-tuned model has learned."""


def closing(request: PromptRequest) -> str:
    r"""Return what ends a text turn of the model: ``\n``, or ``\n\n`` when a past answer has several lines."""
    several = any("\n" in turn.text.strip("\n") for turn in request.turns if turn.role == "assistant")
    return "\n\n" if several else "\n"


def render(request: PromptRequest, turn_end: TurnEnd = "line") -> list[Piece]:
    """Return the pieces of the prompt, without the beginning-of-sequence token, up to where the model takes over."""
    end = closing(request) if turn_end == "line" else ""
    preamble = _preamble(request)
    turns = list(request.turns)
    while turns and turns[0].role == "system":
        turns.pop(0)
    pieces: list[Piece] = []
    if preamble and not (turns and turns[0].role == "user"):
        turns.insert(0, Turn("user"))
    for index, turn in enumerate(turns):
        text = preamble + turn.text if index == 0 else turn.text
        pieces += _turn(turn, text, end)
    return [*pieces, (True, START), MODEL]


def _turn(turn: Turn, text: str, end: str) -> list[Piece]:
    if turn.role == "assistant":
        return _framed(MODEL[1], _model_text(turn, text, end))
    if turn.role == "tool":
        text = f"<tool_result>{text}</tool_result>"
    return _framed("user\n", text)


def _framed(role: str, text: str) -> list[Piece]:
    return [(True, START), (False, role), (False, text), (True, END), (False, "\n")]


def _model_text(turn: Turn, text: str, end: str) -> str:
    calls = "".join(_call(call) + "\n" for call in turn.tool_calls)
    if not text:
        return calls
    return text.rstrip("\n") + ("\n" if calls else end) + calls


def _call(call: ToolCall) -> str:
    return f"{CALL_NAME}{json.dumps(call.name, ensure_ascii=False)}{CALL_OPEN}{call.arguments}{CALL_CLOSE}"


def _preamble(request: PromptRequest) -> str:
    parts = []
    for turn in request.turns:
        if turn.role != "system":
            break
        parts.append(turn.text)
    if request.tools:
        parts.append(_tools(request.tools))
    return "".join(part + "\n\n" for part in parts if part)


def _tools(tools: Sequence[Tool]) -> str:
    lines = ["Tools:"]
    for tool in tools:
        parameters = json.dumps(tool.parameters, ensure_ascii=False)
        lines.append(
            f"{tool.name}: {tool.description} {parameters}" if tool.description else f"{tool.name}: {parameters}"
        )
    lines.append(f'To use one, answer {CALL_NAME}"<tool>"{CALL_OPEN}{{...}}{CALL_CLOSE}')
    return "\n".join(lines)
