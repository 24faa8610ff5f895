"""Where a conversation goes on behind its parent's tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.model_server.vllm.continuation import (
    TurnSuffix,
    common_end,
    continued,
    last_turn,
    may_continue,
    turn_only,
    with_placeholder_answer,
)
from gym_ray.token_id_capture.exact_tokens import ParentTokens
from gym_ray.token_id_capture.token_arrays import TokenArray, pack_token_ids

RECORDINGS = Path(__file__).parents[2] / "recordings/vllm_0_32"
TURNS = [
    {"role": "user"},
    {"role": "assistant", "tool_calls": [{}]},
    {"role": "tool"},
    {"role": "assistant", "content": "a"},
    {"role": "user"},
]


def parent(ids: list[int], generated: int = 1, ended_by: str = "eos") -> ParentTokens:
    return ParentTokens("c1", pack_token_ids(ids), ended_by, generated)


def rendered(name: str) -> TokenArray:
    answer = json.loads(json.loads((RECORDINGS / f"{name}.json").read_text())["body"])
    return pack_token_ids(answer["token_ids"])


def test_a_recorded_rendering_is_continued_from_other_tokens_of_the_same_turn() -> None:
    whole, turn = rendered("render"), rendered("render_no_generation_prompt")
    own = parent([*turn[:29].tolist(), 40, 41, 6], generated=3)
    suffix = TurnSuffix.of(turn, 6)
    assert suffix is not None
    assert suffix.size == 0
    prompt = continued(own, whole, turn, suffix)
    assert prompt is not None
    assert prompt.tolist() == [*own.token_ids.tolist(), 2, 271, 74, 304, 227, 306, 95, 37, 6, 3]


def test_what_the_template_puts_behind_the_end_of_a_turn_goes_in_once() -> None:
    turn = pack_token_ids([1, 50, 2, 9, 1, 60, 61, 2, 9])
    whole = pack_token_ids([*turn.tolist(), 1, 70, 2, 9, 1])
    suffix = TurnSuffix.of(turn, 2)
    assert suffix is not None
    assert suffix.size == 1
    prompt = continued(parent([1, 50, 2, 9, 1, 99, 2], generated=2), whole, turn, suffix)
    assert prompt is not None
    assert prompt.tolist() == [1, 50, 2, 9, 1, 99, 2, 9, 1, 70, 2, 9, 1]


def test_a_turn_that_is_no_exact_prefix_is_not_continued() -> None:
    turn, whole = pack_token_ids([1, 50, 2]), pack_token_ids([1, 51, 2, 3])
    suffix = TurnSuffix.of(turn, 2)
    assert suffix is not None
    assert continued(parent([1, 50, 2]), whole, turn, suffix) is None
    assert continued(parent([1, 50, 2]), turn[:2], turn, suffix) is None


def test_the_suffixes_of_two_renderings_is_compared_by_value() -> None:
    wide = pack_token_ids([2**40, 2, 9])
    assert TurnSuffix.of(pack_token_ids([5, 2, 9]), 2) == TurnSuffix.of(wide, 2)
    assert TurnSuffix.of(pack_token_ids([5, 2, 9]), 2) != TurnSuffix.of(pack_token_ids([5, 2, 8]), 2)
    assert TurnSuffix.of(pack_token_ids([5, 9]), 2) is None
    assert TurnSuffix.of(pack_token_ids([2, 5, 2]), 2) == TurnSuffix(2, b"")


@pytest.mark.parametrize(
    ("ids", "generated", "ended_by", "expected"),
    [
        ([1, 2], 1, "eos", True),
        ([1, 2], 1, "", True),
        ([1, 2], 1, "length", False),
        ([1, 2], 1, "stop_sequence", False),
        ([1, 2], 0, "eos", False),
        ([1, 2], 3, "eos", False),
    ],
)
def test_which_parents_can_be_continued(ids: list[int], generated: int, ended_by: str, expected: bool) -> None:
    assert may_continue({"messages": TURNS}, parent(ids, generated, ended_by)) is expected


@pytest.mark.parametrize(
    "members",
    [
        {"n": 2},
        {"documents": [{"text": "other ones than the parent's"}]},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"echo": True},
        {"use_beam_search": True},
        {"prompt_logprobs": 0},
        {"truncate_prompt_tokens": 100},
    ],
)
def test_requests_that_are_not_plain_stay_text(members: dict[str, Any]) -> None:
    assert not may_continue({"messages": TURNS, **members}, parent([1, 2]))
    assert may_continue({"messages": TURNS, **dict.fromkeys(members)}, parent([1, 2]))


@pytest.mark.parametrize(
    ("messages", "at"),
    [(TURNS, 3), (TURNS[:2], 1), (TURNS[:1], None), ([], None), (None, None), ("text", None), ([None, 3], None)],
)
def test_the_last_turn_is_found(messages: Any, at: int | None) -> None:
    assert last_turn({"messages": messages}) == at


@pytest.mark.parametrize(
    "nothing", [{}, {"content": None}, {"content": ""}, {"content": []}, {"content": [{"type": "text", "text": ""}]}]
)
def test_an_empty_turn_hides_the_last_one_that_says_something(nothing: dict[str, Any]) -> None:
    # B37: it is recognised as the answer before it, and would take along what stands between the two
    assert last_turn({"messages": [*TURNS, {"role": "assistant", **nothing}]}) is None
    assert last_turn({"messages": [{"role": "assistant", **nothing}, *TURNS]}) == 4


@pytest.mark.parametrize(
    "something", [{"content": "a"}, {"content": [{"type": "text", "text": "a"}]}, {"content": [{"type": "refusal"}]}]
)
def test_a_turn_that_says_something_is_the_last_one(something: dict[str, Any]) -> None:
    assert last_turn({"messages": [*TURNS, {"role": "assistant", **something}]}) == 5


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [([1, 2, 3], [9, 2, 3], 2), ([1], [5, 6, 1], 1), ([5, 6, 1], [6, 1], 2), ([1], [2], 0), ([], [2], 0), ([], [], 0)],
)
def test_what_two_renderings_have_in_common_at_their_ends(one: list[int], other: list[int], common: int) -> None:
    assert common_end(pack_token_ids(one), pack_token_ids(other)) == common
    assert common_end(pack_token_ids([2**40, *other]), pack_token_ids(one)) == common


def test_a_conversation_is_cut_behind_a_turn_without_being_changed() -> None:
    body = {"messages": TURNS, "tools": [{}], "model": "m"}
    cut = turn_only(body, 3)
    assert cut == {"messages": TURNS[:4], "tools": [{}], "model": "m", "add_generation_prompt": False}
    other = with_placeholder_answer(body, 3)
    assert other["messages"][:3] == TURNS[:3]
    assert other["messages"][3]["role"] == "assistant"
    assert other["messages"][3]["content"]
    assert body == {"messages": TURNS, "tools": [{}], "model": "m"}
