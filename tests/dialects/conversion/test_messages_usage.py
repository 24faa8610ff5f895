from __future__ import annotations

from typing import Any

import pytest

from gym_ray.dialects.conversion.messages_usage import messages_usage, responses_usage
from gym_ray.dialects.usage import token_counts

FULL = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 5},
    "output_tokens": 12,
    "output_tokens_details": {"reasoning_tokens": 4},
    "total_tokens": 42,
}


def test_cached_and_written_tokens_are_counted_apart_from_the_input() -> None:
    assert messages_usage(FULL) == {
        "input_tokens": 15,
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 5,
        "output_tokens": 12,
    }


def test_the_way_back_adds_them_up_again() -> None:
    usage = {**messages_usage(FULL), "output_tokens_details": {"thinking_tokens": 4}}
    assert responses_usage(usage) == FULL


@pytest.mark.parametrize("usage", [None, {}, [], "x", {"input_tokens": None}, {"input_tokens": True}])
def test_what_nobody_counted(usage: Any) -> None:
    assert messages_usage(usage) == {"input_tokens": 0, "output_tokens": 0}
    assert responses_usage(usage) is None


def test_cache_members_appear_only_when_they_were_reported() -> None:
    assert messages_usage({"input_tokens": 3, "output_tokens": 1}) == {"input_tokens": 3, "output_tokens": 1}
    details = {"input_tokens": 3, "input_tokens_details": {"cached_tokens": None}, "output_tokens": 1}
    assert messages_usage(details) == {"input_tokens": 3, "output_tokens": 1}


def test_more_cached_than_given_is_never_negative() -> None:
    usage = messages_usage({"input_tokens": 3, "input_tokens_details": {"cached_tokens": 9}, "output_tokens": 1})
    assert usage["input_tokens"] == 0


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 4, "output_tokens": 8, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20},
        {"input_tokens": 6, "output_tokens": 6, "cache_read_input_tokens": 29},
        {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": None},
    ],
)
def test_the_totals_of_a_record_do_not_depend_on_the_dialect(usage: dict[str, Any]) -> None:
    there = responses_usage(usage)
    counts = [token_counts(usage), token_counts(there), token_counts(messages_usage(there))]
    assert len({(count.tokens_in, count.tokens_out, count.tokens_total) for count in counts}) == 1
