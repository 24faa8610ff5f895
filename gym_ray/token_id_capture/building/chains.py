"""Chains: one line of proved calls from a root to an end, of which one is the rollout's own (B96, B107-B109).

A chain holds its last call, and lists its calls only when asked, so that many branches of one long conversation cost no
more memory than their own calls.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, cast

from gym_ray.token_id_capture.building.calls import Call, tokens_between
from gym_ray.token_id_capture.building.linking import path_of
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry, array_problem
from gym_ray.token_id_capture.token_arrays import TokenArray, starts_with

__all__ = [
    "MAIN_CHAIN",
    "PER_REQUEST",
    "PREFIX_MERGING",
    "TERMINAL_CHAIN_BROKEN",
    "TERMINAL_CHAIN_DELIVERED",
    "TERMINAL_CHAIN_NOT_CAPTURED",
    "BuildNotes",
    "BuildOutput",
    "Chain",
    "ChainLink",
    "name_chains",
    "trace_chains",
]

MAIN_CHAIN: Final = "main"

PREFIX_MERGING: Final = "prefix_merging"
PER_REQUEST: Final = "per_request"

TERMINAL_CHAIN_DELIVERED: Final = "delivered"
TERMINAL_CHAIN_BROKEN: Final = "broken"
TERMINAL_CHAIN_NOT_CAPTURED: Final = "not_captured"


@dataclass(frozen=True, slots=True, eq=False)
class ChainLink:
    """One call of a chain.

    Attributes:
        packed: The record as it was stored, with arrays; a delta record holds a part of its prompt.
        interstitial_tokens: Prompt tokens beyond what the call before it ended with; none for the first call.
        start: Where they begin in the tokens of the chain.
    """

    packed: PackedEntry
    interstitial_tokens: TokenArray
    start: int

    @property
    def model_call_id(self) -> str:
        """The call."""
        return self.packed.model_call_id

    @property
    def prompt_len(self) -> int:
        """Length of the whole prompt in tokens: where the generation begins in the tokens of the chain."""
        return self.start + int(self.interstitial_tokens.size)

    @property
    def cum_len(self) -> int:
        """Where the generation ends in the tokens of the chain."""
        return self.prompt_len + int(self.packed.generation_token_ids.size)

    @property
    def entry(self) -> TokenEntry:
        """The record as it was stored, with lists; made at every call."""
        return self.packed.entry()

    @property
    def interstitial(self) -> list[int]:
        """The interstitial tokens as a list; made at every call."""
        return cast("list[int]", self.interstitial_tokens.tolist())


class Chain:
    """Calls that continue each other, from a root on (B96).

    Args:
        last: The call at its end; the calls before it are reached through their parents.
        chain_id: Names it within its rollout.
    """

    __slots__ = ("_last", "_links", "chain_id")

    def __init__(self, last: Call, chain_id: str = "") -> None:
        self.chain_id = chain_id
        self._last = last
        self._links: tuple[ChainLink, ...] | None = None

    def __repr__(self) -> str:
        return f"Chain({self.chain_id!r}, ends_with={self._last.call_id!r}, {self._last.cum_len} tokens)"

    @property
    def links(self) -> tuple[ChainLink, ...]:
        """The calls in order; the first one's interstitial is empty and starts behind the root prompt."""
        if self._links is None:
            self._links = _links(path_of(self._last))
        return self._links

    @property
    def root_prompt_tokens(self) -> TokenArray:
        """The prompt of the first call, read-only."""
        root = self._last.root or self._last
        return tokens_between(root, 0, root.prompt_len)

    @property
    def root_prompt(self) -> list[int]:
        """The prompt of the first call as a list; made at every call."""
        return cast("list[int]", self.root_prompt_tokens.tolist())

    @property
    def root_record(self) -> PackedEntry:
        """The record of the first call."""
        return (self._last.root or self._last).record

    @property
    def generated(self) -> int:
        """Number of generated tokens."""
        return self._last.delivered

    def token_ids(self) -> TokenArray:
        """Return every token of the chain, read-only: a view where they lie in one buffer, else one copy."""
        return tokens_between(self._last, 0, self._last.cum_len)

    def validate(self) -> None:
        """Hold the chain against its records once more, with nothing but arrays (W26).

        Raises:
            ValueError: A call has fewer or more log probabilities than tokens, or its recorded prompt or generation is
                not what the chain holds at its place; the call is named.
        """
        tokens = self.token_ids()
        for link in self.links:
            record = link.packed
            problem = array_problem(record.generation_token_ids.size, record.generation_log_probs.size)
            if problem:
                raise ValueError(f"call {link.model_call_id!r}: {problem}")
            prompt_at = link.prompt_len - int(record.prompt_token_ids.size)
            whole_prompt = prompt_at == 0 or record.prompt_is_delta
            if (
                not whole_prompt
                or not starts_with(tokens[prompt_at:], record.prompt_token_ids)
                or not starts_with(tokens[link.prompt_len :], record.generation_token_ids)
            ):
                raise ValueError(f"call {link.model_call_id!r}: its recorded tokens are not those of chain {self!r}")


@dataclass(slots=True)
class BuildNotes:
    """What became of the records (B96).

    Attributes:
        builder: Name of the builder.
        roots: Calls without a predecessor that are not quarantined (W28).
        chains: Number of chains.
        generated_tokens_captured: Generated tokens of all calls that could be used.
        generated_tokens_delivered: Those of the main chain.
        delivered_fraction: Delivered of captured, four decimals; 0.0 if nothing was captured.
        unresolved_retries: Calls made again of which nothing tells which one counts; none where an end is known (B106).
        terminal_call_id: The call that was named as the end.
        terminal_chain: Empty if none was named, else ``delivered``, ``broken`` or ``not_captured``.
        empty_generation_calls: Calls that generated nothing, in input order.
        parent_link_failures: Code to count, also of links that were recovered.
        unresolved_parent_calls: Calls whose record or predecessor is not proved.
    """

    builder: str
    roots: int = 0
    chains: int = 0
    generated_tokens_captured: int = 0
    generated_tokens_delivered: int = 0
    delivered_fraction: float = 0.0
    unresolved_retries: list[str] = field(default_factory=list)
    terminal_call_id: str | None = None
    terminal_chain: str = ""
    empty_generation_calls: list[str] = field(default_factory=list)
    parent_link_failures: dict[str, int] = field(default_factory=dict)
    unresolved_parent_calls: list[str] = field(default_factory=list)


@dataclass(slots=True)
class BuildOutput:
    """What a builder made of a rollout.

    Attributes:
        chains: Chains; the main one has the id ``main``.
        quarantined: Call ids left aside because another call with the same prompt counts.
        notes: What became of the records.
        doubts: Call id to code, for each of ``notes.unresolved_parent_calls``.
        undecided: Calls made again of which nothing tells which one counts, also where the end of the rollout is known:
            it says nothing about calls that do not lead to it.
    """

    chains: list[Chain]
    quarantined: list[str]
    notes: BuildNotes
    doubts: dict[str, str] = field(default_factory=dict)
    undecided: frozenset[str] = frozenset()


def trace_chains(order: Sequence[Call], quarantined: Collection[Call], terminal: Call | None) -> list[Chain]:
    """Return one chain per end that no quarantined call stands before, in processing order (B107).

    Args:
        order: Linked calls, each behind its parent.
        quarantined: Calls that lost against a retry.
        terminal: A call at which its chain ends and which comes first, in place of all chains through it (B108); only
            one whose path is clean.
    """
    shut_out = set(quarantined)
    through_terminal: set[Call] = set()
    chains = [] if terminal is None else [Chain(terminal)]
    for call in order:
        if call.parent in shut_out:
            shut_out.add(call)
        if call is terminal or call.parent in through_terminal:
            through_terminal.add(call)
        if not (call.extended or call in shut_out or call in through_terminal):
            chains.append(Chain(call))
    return chains


def name_chains(chains: Sequence[Chain], *, terminal_first: bool) -> Chain | None:
    """Choose the main chain, number the others in list order, and return it (B109).

    Without a terminal it is the chain whose root was captured first, by time and then id; among the branches of that
    root the one with most generated tokens, then the first in the list (W40).
    """
    if not chains:
        return None
    main = chains[0] if terminal_first else min(chains, key=_precedence)
    main.chain_id = MAIN_CHAIN
    for number, chain in enumerate(chain for chain in chains if chain is not main):
        chain.chain_id = f"branch-{number}"
    return main


def _precedence(chain: Chain) -> tuple[float, str, int]:
    root = chain.root_record
    created_at = math.inf if math.isnan(root.created_at) else root.created_at
    return created_at, root.model_call_id, -chain.generated


def _links(path: Sequence[Call]) -> tuple[ChainLink, ...]:
    first = path[0]
    links = [ChainLink(first.record, tokens_between(first, 0, 0), first.prompt_len)]
    for before, call in pairwise(path):
        links.append(ChainLink(call.record, tokens_between(call, before.cum_len, call.prompt_len), before.cum_len))
    return tuple(links)
