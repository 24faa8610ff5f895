"""Computes ``ng_perf``: what an agent's own calls cost (D103-D105).

Only calls that an invocation owns count, so that judges and user simulators never do, and what nobody reported is
absent and not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gym_ray.evidence.matching import CallIdentity, CallLookup, match_calls

__all__ = ["PERF_FIELD", "rollout_perf"]

PERF_FIELD = "ng_perf"

_TOKENS = {
    "prompt_tokens": "prompt_tokens",
    "cached_prompt_tokens": "cached_tokens",
    "completion_tokens": "completion_tokens",
    "reasoning_tokens": "reasoning_tokens",
}
"""Figure -> the token count that it adds up."""


def rollout_perf(
    trajectory: Mapping[str, Any], latency_ms: float | None, *, owners: Sequence[str | None] | None = None
) -> dict[str, Any] | None:
    """Return the figures of a rollout, None when its trajectory observed no invocation (D103).

    Args:
        trajectory: A valid trajectory as a full JSON object; its references are matched exactly (D75).
        latency_ms: How long the rollout took, None when nobody measured it.
        owners: For each call of the trajectory the invocation that owns it (D77), where the exact join has told; the
            references say the same and are matched again without it.

    Returns:
        ``num_turns``, ``num_tool_calls`` and ``token_observability_coverage``; token counts that at least one owned
        call reported; ``total_latency_ms`` if it was measured (D104).
    """
    invocations = trajectory["invocations"]
    if not invocations:
        return None
    owned = _owned_calls(trajectory) if owners is None else _places_of(invocations, owners)
    turns: dict[str, int] = {}
    for turn in trajectory["turns"]:
        name = turn["invocation_id"]
        turns[name] = turns.get(name, 0) + 1
    ids = [invocation["invocation_id"] for invocation in invocations]
    num_turns = sum([turns.get(name) or len(places) or 1 for name, places in zip(ids, owned, strict=True)])
    calls = trajectory["model_calls"]
    stats = [calls[place]["token_stats"] for places in owned for place in places]
    figures: dict[str, Any] = {
        "num_turns": num_turns,
        "num_tool_calls": _number_of(trajectory["tool_calls"], ids),
        "token_observability_coverage": min(1.0, len(stats) / num_turns),
    }
    for figure, count in _TOKENS.items():
        known = [value for call in stats if (value := call[count]) is not None]
        if known:
            figures[figure] = sum(known)
    if latency_ms is not None:
        figures["total_latency_ms"] = latency_ms
    return figures


def _number_of(tool_calls: Sequence[Mapping[str, Any]], ids: Iterable[str]) -> int:
    listed = set(ids) if tool_calls else ()
    return sum(call["invocation_id"] in listed for call in tool_calls)


def _places_of(invocations: Sequence[Mapping[str, Any]], owners: Iterable[str | None]) -> list[list[int]]:
    owned: dict[str | None, list[int]] = {invocation["invocation_id"]: [] for invocation in invocations}
    for place, owner in enumerate(owners):
        if owner in owned:
            owned[owner].append(place)
    return [owned[invocation["invocation_id"]] for invocation in invocations]


def _owned_calls(trajectory: Mapping[str, Any]) -> list[list[int]]:
    """Return, for each invocation, the places of the calls that it is the first to claim (D104)."""
    lookup = CallLookup(CallIdentity.of_projected(call, place) for place, call in enumerate(trajectory["model_calls"]))
    claimed: set[int] = set()
    owned: list[list[int]] = []
    for invocation in trajectory["invocations"]:
        mine: list[int] = []
        for ref in invocation["model_calls"]:
            places = match_calls(ref, lookup)
            if len(places) == 1 and places[0] not in claimed:
                claimed.add(places[0])
                mine.append(places[0])
        owned.append(mine)
    return owned
