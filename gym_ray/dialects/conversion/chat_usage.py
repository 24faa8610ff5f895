"""Token counts between Chat and Responses answers (A168). Unknown is null, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_ray.dialects.usage import TokenCounts, count, token_counts

__all__ = ["chat_usage", "responses_usage"]


def responses_usage(usage: object) -> dict[str, Any] | None:
    """Return a Chat answer's usage in the Responses shape; null when nothing is known."""
    counts = token_counts(usage)
    if counts == TokenCounts() or not isinstance(usage, Mapping):
        return None
    return {
        "input_tokens": counts.tokens_in,
        "input_tokens_details": _given(usage, "prompt_tokens_details", counts),
        "output_tokens": counts.tokens_out,
        "output_tokens_details": _generated(usage, "completion_tokens_details", counts),
        "total_tokens": counts.tokens_total,
    }


def chat_usage(usage: object) -> dict[str, Any] | None:
    """Return a Responses answer's usage in the Chat shape.

    Strict Chat clients take numbers only, so it is null unless both the prompt and the completion were counted.
    """
    counts = token_counts(usage)
    if counts.tokens_in is None or counts.tokens_out is None or not isinstance(usage, Mapping):
        return None
    return {
        "prompt_tokens": counts.tokens_in,
        "completion_tokens": counts.tokens_out,
        "total_tokens": counts.tokens_total,
        "prompt_tokens_details": _given(usage, "input_tokens_details", counts),
        "completion_tokens_details": _generated(usage, "output_tokens_details", counts),
    }


def _given(usage: Mapping[str, Any], member: str, counts: TokenCounts) -> dict[str, Any]:
    details = _counts_in(usage.get(member))
    written = details.get("cache_write_tokens", counts.cache_creation_tokens)
    return {**details, "cached_tokens": counts.cached_tokens, "cache_write_tokens": written}


def _generated(usage: Mapping[str, Any], member: str, counts: TokenCounts) -> dict[str, Any]:
    return {**_counts_in(usage.get(member)), "reasoning_tokens": counts.tokens_reasoning}


def _counts_in(details: object) -> dict[str, int]:
    if not isinstance(details, Mapping):
        return {}
    return {key: found for key, value in details.items() if (found := count(value)) is not None}
