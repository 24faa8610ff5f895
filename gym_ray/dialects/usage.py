"""Reads token counts from a usage block of any dialect or gateway.

Unknown is None, never 0 (A4). Only what a provider reported as a count is a count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["TokenCounts", "count", "count_values", "token_counts"]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of one call, None where not reported.

    Attributes:
        tokens_in: Prompt tokens, those from a cache and those written to it included.
        tokens_out: Generated tokens.
        tokens_reasoning: Generated tokens that were reasoning.
        tokens_total: The total as reported, else in plus out.
        cached_tokens: Prompt tokens that came from a cache.
        cache_hit: Whether any did.
        cache_creation_tokens: Prompt tokens written to a cache.
    """

    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_reasoning: int | None = None
    tokens_total: int | None = None
    cached_tokens: int | None = None
    cache_hit: bool | None = None
    cache_creation_tokens: int | None = None


_Counts = tuple[int | None, int | None, int | None, int | None, int | None, bool | None, int | None]
_UNKNOWN = TokenCounts()
_NOTHING: _Counts = (None, None, None, None, None, None, None)
_GENERATED = ("output_tokens", "completion_tokens")
_CACHED = ("cached_tokens", "cached_input_tokens")
_CACHED_ABOVE = ("cache_read_input_tokens", "cached_input_tokens")
_REASONING = ("reasoning_tokens",)


def count(value: object) -> int | None:
    """Return a value that is a count (a JSON integer of at least 0), else None; a boolean is none (A105)."""
    return value if type(value) is int and value >= 0 else None


def token_counts(usage: object) -> TokenCounts:
    """Read the token counts of a usage block (A105-A111); never raises."""
    return _UNKNOWN if not isinstance(usage, dict) or not usage else TokenCounts(*count_values(usage))


def count_values(usage: object) -> _Counts:
    """Return what :func:`token_counts` does, as the values of its fields in their order."""
    if not isinstance(usage, dict) or not usage:
        return _NOTHING
    get = usage.get
    prompt, given = get("prompt_tokens_details"), get("input_tokens_details")
    tokens_in = _tokens_in(usage, openai_style=isinstance(given, dict) or isinstance(prompt, dict))
    tokens_out = _first(usage, _GENERATED)
    total = count(get("total_tokens"))
    if total is None and tokens_in is not None and tokens_out is not None:
        total = tokens_in + tokens_out
    cached = None if prompt is None else _first(prompt, _CACHED)
    if cached is None and (cached := _first(given, _CACHED)) is None:
        cached = _first(usage, _CACHED_ABOVE)
    reasoning = _first(get("output_tokens_details"), _REASONING)
    if reasoning is None and (reasoning := _first(get("completion_tokens_details"), _REASONING)) is None:
        reasoning = count(get("reasoning_output_tokens"))
    cache_hit = None if cached is None else cached > 0
    return tokens_in, tokens_out, reasoning, total, cached, cache_hit, count(get("cache_creation_input_tokens"))


def _first(holder: object, names: tuple[str, ...]) -> int | None:
    """Return the first of these members that is a count, None where there is no object to have them."""
    if isinstance(holder, dict):
        for name in names:
            value = holder.get(name)
            if type(value) is int and value >= 0:  # a count, and most are: asked here, for less than a call
                return value
    return None


def _tokens_in(usage: dict[str, Any], *, openai_style: bool) -> int | None:
    """Prompt tokens; Anthropic counts cached ones apart, so they are added, but only there (A106, A107)."""
    size = count(usage.get("input_tokens"))
    if size is None:
        size = count(usage.get("prompt_tokens"))
        if size is not None:
            return size
    if openai_style:
        return size
    read, written = count(usage.get("cache_read_input_tokens")), count(usage.get("cache_creation_input_tokens"))
    cache = (read or 0) + (written or 0)
    if size is None:
        return cache or None
    return size + cache
