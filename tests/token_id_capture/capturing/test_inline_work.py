from __future__ import annotations

from typing import Any

import pytest

from gym_ray.token_id_capture.capturing.inline_work import (
    can_be_compared_inline,
    can_be_hashed_inline,
    can_be_recorded_inline,
)
from gym_ray.token_id_capture.exact_tokens import ExactTokens
from gym_ray.token_id_capture.request_items import RequestItems
from gym_ray.token_id_capture.token_arrays import pack_log_probs, pack_token_ids

LONG = "x" * 300_000
LONG_ITEMS: list[Any] = [
    {"role": "user", "content": LONG},
    {"role": "user", "content": [{"type": "text", "text": LONG}]},
    {"type": "function_call", "call_id": "k", "name": "f", "arguments": LONG},
    {"type": "function_call_output", "call_id": "k", "output": [LONG]},
]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("item", LONG_ITEMS, ids=range(len(LONG_ITEMS)))
def test_a_long_text_is_hashed_on_a_thread_wherever_it_stands(item: Any) -> None:
    assert not can_be_hashed_inline([user("a"), item], known=0)
    assert can_be_hashed_inline([item, user("a")], known=1)
    assert can_be_compared_inline([item, user("a")])
    assert not can_be_compared_inline([item] * 4)


def test_many_items_are_hashed_on_a_thread_and_known_ones_do_not_count() -> None:
    items = [user("a")] * 300
    assert not can_be_hashed_inline(items, known=0)
    assert can_be_hashed_inline(items, known=100)
    assert can_be_compared_inline(items)
    assert not can_be_compared_inline(items * 8)


def test_a_text_input_counts_though_it_is_no_item() -> None:
    assert not can_be_hashed_inline(RequestItems((), LONG), known=0)
    assert can_be_hashed_inline(RequestItems((), "a"), known=0)


def test_members_that_hold_no_text_are_no_fault() -> None:
    assert can_be_hashed_inline([None, 3, {"role": "user", "content": None, "n": 1, "m": [1, None]}], known=0)


@pytest.mark.parametrize(
    ("size", "delta", "inline"), [(16_000, False, True), (17_000, False, False), (60_000, True, True)]
)
def test_converting_a_prompt_takes_longer_than_comparing_it(size: int, delta: bool, inline: bool) -> None:
    tokens = ExactTokens(pack_token_ids(range(size)), pack_token_ids([1]), pack_log_probs([-0.5]))
    assert can_be_recorded_inline(tokens, delta=delta) is inline


def test_token_fields_of_an_answer_are_always_converted() -> None:
    fields = {"prompt_token_ids": [0] * 17_000, "generation_token_ids": None}
    assert not can_be_recorded_inline(fields, delta=True)
    assert can_be_recorded_inline({"prompt_token_ids": [0]}, delta=False)
