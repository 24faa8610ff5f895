"""Whether a build may be trained on, and the numbers that say how it went (B120).

If the chain of the call that ended the rollout is delivered, doubts about other calls do not matter. Otherwise any
doubt masks the rollout. The verdict covers what was built; :mod:`~gym_ray.token_id_capture.assembly` adds what was
lost.
"""

from __future__ import annotations

from typing import Any, Final

from gym_ray.token_id_capture.builder import (
    PER_REQUEST,
    TERMINAL_CHAIN_BROKEN,
    TERMINAL_CHAIN_DELIVERED,
    TERMINAL_CHAIN_NOT_CAPTURED,
    BuildOutput,
)
from gym_ray.token_id_capture.reasons import (
    NOTHING_GENERATED,
    SEVERAL_CHAINS,
    SEVERAL_ROOTS,
    TERMINAL_BROKEN,
    TERMINAL_NOT_ATTRIBUTED,
    TERMINAL_NOT_CAPTURED,
    UNRESOLVED_PARENT_CALLS,
    UNRESOLVED_RETRIES,
)
from gym_ray.token_id_capture.terminal import TerminalAttribution

__all__ = [
    "JUDGED_BY_ROWS",
    "attribution_metric",
    "build_metrics",
    "doubts_of",
]


_OF_TERMINAL_CHAIN: Final = {
    "": TERMINAL_NOT_ATTRIBUTED,
    TERMINAL_CHAIN_BROKEN: TERMINAL_BROKEN,
    TERMINAL_CHAIN_NOT_CAPTURED: TERMINAL_NOT_CAPTURED,
}
JUDGED_BY_ROWS: Final = frozenset({SEVERAL_ROOTS, SEVERAL_CHAINS})
"""Doubts about which of several chains counts. They mask no row where every chain is a row that is judged by itself."""


def doubts_of(output: BuildOutput, attribution: TerminalAttribution, *, is_end_declared: bool) -> tuple[str, ...]:
    """Return codes of why a build must be masked by itself, none if it need not be: the table of B120.

    Args:
        output: What was built.
        attribution: The call that ended the rollout, as far as that is known.
        is_end_declared: Whether the agent named the response that ended it.
    """
    if not any(chain.generated for chain in output.chains):
        return (NOTHING_GENERATED,)
    notes = output.notes
    if notes.builder == PER_REQUEST:  # its sequences stand alone: no link, root or end can be wrong
        return (UNRESOLVED_PARENT_CALLS,) if notes.unresolved_parent_calls else ()
    if notes.terminal_chain == TERMINAL_CHAIN_DELIVERED:
        return ()
    if attribution.model_call_id is not None or is_end_declared:
        return (_OF_TERMINAL_CHAIN[notes.terminal_chain],)
    doubts = {
        UNRESOLVED_RETRIES: bool(notes.unresolved_retries),
        UNRESOLVED_PARENT_CALLS: bool(notes.unresolved_parent_calls),
        SEVERAL_ROOTS: notes.roots != 1,
        SEVERAL_CHAINS: notes.chains != 1,
    }
    return tuple(reason for reason, holds in doubts.items() if holds)


def build_metrics(n_calls: int, output: BuildOutput, attribution: TerminalAttribution) -> dict[str, Any]:
    """Return the contract's metrics of a build of ``n_calls`` records (B120)."""
    notes = output.notes
    return {
        "n_calls": n_calls,
        "terminal_attribution": attribution_metric(attribution, notes.terminal_chain),
        "chains": notes.chains,
        "roots": notes.roots,
        "quarantined_calls": len(output.quarantined),
        "quarantined_fraction": round(len(output.quarantined) / n_calls, 4),
        "delivered_fraction": notes.delivered_fraction,
        "generated_tokens_captured": notes.generated_tokens_captured,
        "generated_tokens_delivered": notes.generated_tokens_delivered,
        "parent_link_failures": dict(notes.parent_link_failures),
        "unresolved_parent_calls": len(notes.unresolved_parent_calls),
        "empty_generation_calls": len(notes.empty_generation_calls),
    }


def attribution_metric(attribution: TerminalAttribution, chain: str) -> dict[str, Any]:
    """Return how the end was found; ``chain`` says what became of the chain that it ends."""
    return {
        "method": attribution.method or "none",
        "call_id": attribution.model_call_id,
        "reason": attribution.reason,
        "chain": chain,
    }
