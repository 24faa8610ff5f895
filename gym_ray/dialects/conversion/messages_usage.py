"""Usage of Messages and of Responses, each as the other, cache accounting included (A161, W13).

Messages counts cached prompt tokens apart, Responses inside the input. Both shapes demand integers on the wire: a count
that nobody reported is 0 here, and what was known is told to the capture by the handler, not by this shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_ray.dialects.usage import count, token_counts

__all__ = ["messages_usage", "responses_usage"]


def messages_usage(usage: object) -> dict[str, Any]:
    """Return the Messages usage of a Responses usage; cache members only where they were reported."""
    counts = token_counts(usage)
    written = counts.cache_creation_tokens
    if written is None:
        written = _detail(usage, "input_tokens_details", "cache_write_tokens")
    result = {
        "input_tokens": max(0, (counts.tokens_in or 0) - (counts.cached_tokens or 0) - (written or 0)),
        "output_tokens": counts.tokens_out or 0,
    }
    if counts.cached_tokens is not None:
        result["cache_read_input_tokens"] = counts.cached_tokens
    if written is not None:
        result["cache_creation_input_tokens"] = written
    return result


def responses_usage(usage: object) -> dict[str, Any] | None:
    """Return the Responses usage of a Messages usage, None when it reports no count."""
    counts = token_counts(usage)
    if counts.tokens_in is None and counts.tokens_out is None:
        return None
    size, generated = counts.tokens_in or 0, counts.tokens_out or 0
    reasoning = counts.tokens_reasoning
    if reasoning is None:
        reasoning = _detail(usage, "output_tokens_details", "thinking_tokens")
    return {
        "input_tokens": size,
        "input_tokens_details": {
            "cached_tokens": counts.cached_tokens or 0,
            "cache_write_tokens": counts.cache_creation_tokens or 0,
        },
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": reasoning or 0},
        "total_tokens": size + generated,
    }


def _detail(usage: object, group: str, name: str) -> int | None:
    details = usage.get(group) if isinstance(usage, Mapping) else None
    return count(details.get(name)) if isinstance(details, Mapping) else None
