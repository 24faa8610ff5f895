"""Builds chains to train on from the records of a rollout, with a note for everything left out (B96-B110).

Only what is proved is linked. What cannot be proved starts a fragment and is named, so that the rollout is masked: a
wrong link is worse than a lost sample. Time is linear in the stored tokens and memory in the calls; nothing recurses.
How the last call is found (B111-B115) and how a chain is laid out as a response (B116-B118) have their names here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gym_ray.token_id_capture.building.calls import Call, Gathered, gather
from gym_ray.token_id_capture.building.chains import (
    PER_REQUEST,
    PREFIX_MERGING,
    TERMINAL_CHAIN_BROKEN,
    TERMINAL_CHAIN_DELIVERED,
    TERMINAL_CHAIN_NOT_CAPTURED,
    BuildNotes,
    BuildOutput,
    Chain,
    ChainLink,
    name_chains,
    trace_chains,
)
from gym_ray.token_id_capture.building.linking import Links, link_calls, path_of
from gym_ray.token_id_capture.building.projection import (
    assert_prefix_contiguity,
    project_chain_to_output_items,
    project_main_chain_response,
)
from gym_ray.token_id_capture.building.proving import prove_records
from gym_ray.token_id_capture.building.retries import Retries, settle_retries
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.terminal import TerminalAttribution, resolve_terminal

__all__ = [
    "PER_REQUEST",
    "PREFIX_MERGING",
    "TERMINAL_CHAIN_BROKEN",
    "TERMINAL_CHAIN_DELIVERED",
    "TERMINAL_CHAIN_NOT_CAPTURED",
    "BuildNotes",
    "BuildOutput",
    "Chain",
    "ChainLink",
    "TerminalAttribution",
    "assert_prefix_contiguity",
    "project_chain_to_output_items",
    "project_main_chain_response",
    "resolve_terminal",
    "run_builder",
]


def run_builder(
    entries: Sequence[TokenEntry | PackedEntry], builder: str = PREFIX_MERGING, terminal_call_id: str | None = None
) -> BuildOutput:
    """Build the chains of one rollout (B98).

    Args:
        entries: Its records in any order; they are not changed, and the result holds on to their arrays.
        builder: ``prefix_merging``, or ``per_request`` for trainers that take one sequence a call (B99).
        terminal_call_id: The call that ended the rollout, where that is known.

    Raises:
        ValueError: There is no such builder.
    """
    build = _BUILDERS.get(builder)
    if build is None:
        raise ValueError(f"unknown builder {builder!r}: use one of {', '.join(sorted(_BUILDERS))}")
    return build(entries, terminal_call_id)


def _prefix_merging(entries: Sequence[TokenEntry | PackedEntry], terminal_call_id: str | None) -> BuildOutput:
    found, failures = _proved(entries, lambda call_id: call_id == terminal_call_id)
    links = link_calls(call for call in found.calls.values() if call.proved)
    doubts = _doubts([*failures, *((code, call_id) for call_id, code in links.boundaries.items())])
    terminal = next((call for call in links.order if call.call_id == terminal_call_id), None)
    terminal_path = frozenset(call.call_id for call in path_of(terminal)) if terminal else frozenset()
    retries = settle_retries(links.order, terminal_path)
    delivered = terminal is not None and not terminal_path & (doubts.keys() | _ids(retries.quarantined))
    chains = trace_chains(links.order, retries.quarantined, terminal if delivered else None)
    main = name_chains(chains, terminal_first=delivered)
    notes = BuildNotes(
        PREFIX_MERGING,
        terminal_call_id=terminal_call_id,
        empty_generation_calls=[call_id for call_id, call in found.calls.items() if call.proved and not call.generated],
        parent_link_failures=dict(Counter(code for code, _ in [*failures, *links.notes])),
        unresolved_parent_calls=list(doubts),
        unresolved_retries=[] if terminal_path else retries.undecided,
        chains=len(chains),
    )
    if terminal_call_id is not None:
        notes.terminal_chain = _terminal_chain(terminal, delivered)
    _count(notes, links, retries, main)
    left_aside = [call.call_id for call in retries.quarantined]
    return BuildOutput(chains, left_aside, notes, doubts, frozenset(retries.undecided))


def _per_request(entries: Sequence[TokenEntry | PackedEntry], terminal_call_id: str | None) -> BuildOutput:
    found, failures = _proved(entries, lambda _: True)
    calls = sorted(
        (call for call in found.calls.values() if call.proved), key=lambda call: (call.prompt_len, call.call_id)
    )
    for call in calls:
        call.delivered = call.generated
    doubts = _doubts(failures)
    notes = BuildNotes(
        PER_REQUEST,
        chains=len(calls),
        terminal_call_id=terminal_call_id,
        parent_link_failures=dict(Counter(code for code, _ in failures)),
        unresolved_parent_calls=list(doubts),
    )
    return BuildOutput([Chain(call, f"req-{number}") for number, call in enumerate(calls)], [], notes, doubts)


def _proved(
    entries: Sequence[TokenEntry | PackedEntry], in_full: Callable[[str], bool]
) -> tuple[Gathered, list[tuple[str, str]]]:
    found = gather(entries)
    return found, [*found.failures, *prove_records(found.calls, in_full=in_full)]


def _doubts(failures: Iterable[tuple[str, str]]) -> dict[str, str]:
    doubts: dict[str, str] = {}
    for code, call_id in failures:
        doubts.setdefault(call_id, code)
    return doubts


def _ids(calls: Iterable[Call]) -> set[str]:
    return {call.call_id for call in calls}


def _terminal_chain(terminal: Call | None, delivered: bool) -> str:
    if terminal is None:
        return TERMINAL_CHAIN_NOT_CAPTURED
    return TERMINAL_CHAIN_DELIVERED if delivered else TERMINAL_CHAIN_BROKEN


def _count(notes: BuildNotes, links: Links, retries: Retries, main: Chain | None) -> None:
    left_aside = set(retries.quarantined)
    notes.roots = sum(call.parent is None and call not in left_aside for call in links.order)
    notes.generated_tokens_captured = sum(call.generated for call in links.order)
    notes.generated_tokens_delivered = 0 if main is None else main.generated
    if notes.generated_tokens_captured:
        fraction = notes.generated_tokens_delivered / notes.generated_tokens_captured
        notes.delivered_fraction = round(fraction, 4)


_BUILDERS: Final = {PREFIX_MERGING: _prefix_merging, PER_REQUEST: _per_request}
