"""The records of a rollout with their arrays in one buffer, each call's tokens behind those of the call it continues.

A chain of deltas is then one stretch of that buffer, so the row that is made of it is a view and needs no copy. It also
saves the overhead of separate arrays. No value and no order of records is changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_ray.token_id_capture.packed import PackedEntry

__all__ = ["in_one_buffer"]


def in_one_buffer(records: Sequence[PackedEntry]) -> list[PackedEntry]:
    """Return equal records in the same order, whose arrays are read-only views of as few buffers as their types allow.

    While it runs, both the old and the new arrays are held. Time is linear.
    """
    order = _lines(records)
    tokens = _placed(
        [part for at in order for part in (records[at].prompt_token_ids, records[at].generation_token_ids)]
    )
    log_probs = _placed([records[at].generation_log_probs for at in order])
    placed = list(records)
    for number, at in enumerate(order):
        placed[at] = PackedEntry(tokens[2 * number], tokens[2 * number + 1], log_probs[number], records[at].rest)
    return placed


def _lines(records: Sequence[PackedEntry]) -> list[int]:
    """Return the positions of all records, each delta behind its parent where nothing else claims that place."""
    positions = {record.model_call_id: at for at, record in enumerate(records)}
    deltas: defaultdict[int, list[int]] = defaultdict(list)
    starts = []
    for at, record in enumerate(records):
        parent = positions.get(record.parent_call_id or "") if record.prompt_is_delta else None
        if parent is None or positions[record.model_call_id] != at:  # the last copy of a call stands for it
            starts.append(at)
        else:
            deltas[parent].append(at)
    order: list[int] = []
    _follow(reversed(starts), deltas, order)
    if len(order) < len(records):  # deltas in a circle have no start
        order += sorted(set(range(len(records))).difference(order))
    return order


def _follow(starts: Iterable[int], deltas: dict[int, list[int]], order: list[int]) -> None:
    waiting = list(starts)
    while waiting:
        at = waiting.pop()
        order.append(at)
        waiting += reversed(deltas.get(at, ()))


def _placed(parts: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return read-only views, one a part, of one buffer for each type that occurs."""
    views: list[NDArray[Any]] = list(parts)
    for dtype in {part.dtype for part in parts}:
        chosen = [number for number, part in enumerate(parts) if part.dtype == dtype]
        buffer = np.concatenate([parts[number] for number in chosen])
        buffer.flags.writeable = False
        end = 0
        for number in chosen:
            start, end = end, end + parts[number].size
            views[number] = buffer[start:end]
    return views
