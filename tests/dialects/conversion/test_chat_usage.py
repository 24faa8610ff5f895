from __future__ import annotations

from typing import Any

import pytest

from gym_ray.dialects.conversion.chat_usage import chat_usage, responses_usage


def test_unknown_is_null_and_never_zero() -> None:
    assert responses_usage({"prompt_tokens": 4, "completion_tokens": 2}) == {
        "input_tokens": 4,
        "input_tokens_details": {"cached_tokens": None, "cache_write_tokens": None},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": None},
        "total_tokens": 6,
    }
    assert responses_usage({"completion_tokens": 2})["input_tokens"] is None


@pytest.mark.parametrize("usage", [None, {}, [], "x", {"prompt_tokens": None}, {"prompt_tokens": True}, {"other": 1}])
def test_nothing_known_is_no_usage(usage: Any) -> None:
    assert responses_usage(usage) is None
    assert chat_usage(usage) is None


def test_a_reported_total_is_copied() -> None:
    assert responses_usage({"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 9})["total_tokens"] == 9


def test_details_travel_both_ways() -> None:
    chat = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 1, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3, "accepted_prediction_tokens": 2},
    }
    assert chat_usage(responses_usage(chat)) == chat


def test_cached_tokens_of_a_prompt_are_part_of_it() -> None:
    usage = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 5}
    assert chat_usage(usage) == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": None},
        "completion_tokens_details": {"reasoning_tokens": None},
    }


@pytest.mark.parametrize("usage", [{"input_tokens": 3}, {"output_tokens": 3}])
def test_half_a_usage_is_none_for_strict_chat_clients(usage: dict[str, int]) -> None:
    assert chat_usage(usage) is None
