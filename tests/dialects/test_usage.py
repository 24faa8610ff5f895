from __future__ import annotations

import pytest

from gym_ray.dialects.usage import TokenCounts, count, token_counts


@pytest.mark.parametrize("value", [True, 3.0, "5", -1, None, [], {}])
def test_not_a_count(value: object) -> None:
    assert count(value) is None
    assert token_counts({"input_tokens": value, "total_tokens": value}) == TokenCounts()


def test_gateway_block_is_not_counted_twice() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "cache_read_input_tokens": 80}
    assert token_counts(usage) == TokenCounts(
        tokens_in=100, tokens_out=5, tokens_total=105, cached_tokens=80, cache_hit=True
    )


def test_anthropic_block_is_folded() -> None:
    usage = {"input_tokens": 4, "output_tokens": 8, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
    counts = token_counts(usage)
    assert (counts.tokens_in, counts.tokens_total, counts.cached_tokens, counts.cache_creation_tokens) == (
        124,
        132,
        100,
        20,
    )


def test_details_of_the_wrong_type_are_unknown() -> None:
    assert token_counts(
        {"prompt_tokens_details": [1], "output_tokens_details": "x", "output_tokens": 2}
    ) == TokenCounts(tokens_out=2)
