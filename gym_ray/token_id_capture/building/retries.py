"""Calls made again with the same prompt: which one the agent went on with, where that can be told (B106, W10, W28)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from gym_ray.token_id_capture.building.calls import Call, tokens_between
from gym_ray.token_id_capture.token_arrays import digest_packed

__all__ = ["Retries", "settle_retries"]


@dataclass(slots=True)
class Retries:
    """Calls that do not count because another call with the same prompt does.

    Attributes:
        quarantined: Calls left aside.
        undecided: Call ids of every group in which nothing tells which one counts.
    """

    quarantined: list[Call] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)


def settle_retries(order: Iterable[Call], terminal_path: frozenset[str]) -> Retries:
    """Decide every group of children of one parent with equal prompts; all roots are one family.

    What is on the terminal path counts; else what was continued; else the smallest id, which settles a group only if
    its members generated the same tokens, since then they are interchangeable (W28).

    Args:
        order: Linked calls, by length of the prompt, then id.
        terminal_path: Call ids from the root to the call that ended the rollout; empty if none is known.
    """
    retries = Retries()
    for group in _groups(order):
        kept = {call for call in group if call.call_id in terminal_path} or {call for call in group if call.extended}
        if not kept:
            kept = {group[0]}
            if not _interchangeable(group):
                retries.undecided += [call.call_id for call in group]
        retries.quarantined += [call for call in group if call not in kept]
    return retries


def _groups(order: Iterable[Call]) -> Iterator[list[Call]]:
    families: defaultdict[tuple[Call | None, int], list[Call]] = defaultdict(list)
    for call in order:
        families[call.parent, call.prompt_len].append(call)
    for (parent, prompt_len), family in families.items():
        if len(family) == 1:  # by far the most: nothing to compare, nothing to hash
            continue
        shared = 0 if parent is None else parent.cum_len
        groups: defaultdict[str, list[Call]] = defaultdict(list)
        for call in family:
            groups[digest_packed(tokens_between(call, shared, prompt_len))].append(call)
        yield from (group for group in groups.values() if len(group) > 1)


def _interchangeable(group: list[Call]) -> bool:
    first = group[0].record.generation_token_ids
    return all(np.array_equal(call.record.generation_token_ids, first) for call in group[1:])
