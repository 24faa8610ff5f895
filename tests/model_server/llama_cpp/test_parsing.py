"""What the model writes, cut anywhere, becomes the same text and the same calls."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.dialects.neutral import TextDelta, ToolCall
from gym_ray.model_server.llama_cpp.parsing import TurnParser

CALL = '<tool_call>{"name": "look_up", "arguments": {"order_id": "}</tool_call>, \\"arguments\\": "}}</tool_call>\n'


def run(pieces: list[str], *, calls: bool = True) -> tuple[str, list[ToolCall], TurnParser]:
    parser = TurnParser(calls=calls)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.close()
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    return text, [event for event in events if isinstance(event, ToolCall)], parser


@given(st.text(alphabet='ab<tool_call>{"name\n😀 ', max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_text_cut_anywhere_is_the_whole_text_without_its_last_line_ends(text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    found, calls, parser = run(pieces, calls=False)
    assert (found, calls) == (text.rstrip("\n"), [])
    assert parser.text == found


@given(st.integers(0, len(CALL)), st.integers(0, len(CALL)))
def test_a_call_cut_anywhere_is_one_whole_call_and_no_text(first: int, second: int) -> None:
    low, high = sorted((first, second))
    text, (call,), parser = run([CALL[:low], CALL[low:high], CALL[high:]])
    assert text == ""
    assert call.name == "look_up"
    assert json.loads(call.arguments) == {"order_id": '}</tool_call>, "arguments": '}
    assert call.call_id.startswith("call_")
    assert parser.tool_calls == (call,)


@pytest.mark.parametrize("length", range(1, len(CALL) - 1))
def test_an_unfinished_call_is_neither_handed_out_nor_shown(length: int) -> None:
    text, calls, parser = run([CALL[:length]])
    assert (text, calls, parser.text, parser.tool_calls) == ("", [], "", ())


def test_text_flows_as_soon_as_it_cannot_be_a_call() -> None:
    parser = TurnParser(calls=True)
    assert parser.feed("<tool") == []
    assert parser.feed("s>") == [TextDelta("<tools>")]
    assert parser.feed("x\n") == [TextDelta("x")]
    assert parser.feed("y\n\n") == [TextDelta("\ny")]
    assert parser.close() == []


def test_without_tools_a_call_is_only_text() -> None:
    assert run([CALL], calls=False)[0] == CALL.rstrip("\n")


def test_two_calls_never_share_an_id() -> None:
    assert run([CALL])[1][0].call_id != run([CALL])[1][0].call_id
