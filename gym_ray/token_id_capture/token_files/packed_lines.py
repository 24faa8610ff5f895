"""Many record lines at once, for those who read a file from its beginning.

It gives the records that the general way gives, and leaves that way every line that is out of order or spelled
unusually. The lines of a rollout are much alike: what they have in common is looked at once, and their numbers become
arrays together.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from gym_ray.token_id_capture.packed import PackedEntry, RecordShapes
from gym_ray.token_id_capture.token_arrays import FloatArray
from gym_ray.token_id_capture.token_files.entry_lines import may_round

__all__ = ["LINES_AT_ONCE", "pack_lines"]

LINES_AT_ONCE: Final = 32
"""How many lines to hand over; more gain nothing, and stay in memory longer."""

_Parsed: TypeAlias = tuple[dict[str, Any], slice, slice, slice]  # other members; places of the three columns


def pack_lines(lines: Sequence[bytes]) -> list[PackedEntry | None]:
    """Return the record in each line, None for a line that has to take the general way.

    The columns of all records are parts of three buffers.
    """
    ids, floats = array("I"), array("d")
    parsed = [_parse(line, ids, floats) for line in lines]
    tokens, log_probs = _frozen(np.array(ids, np.uint32)), _LogProbs(np.array(floats, np.float64))
    shapes: RecordShapes = {}
    return [
        None
        if one is None
        else PackedEntry.of_columns(tokens[one[1]], tokens[one[2]], log_probs.part(one[3]), one[0], shapes)
        for one in parsed
    ]


def _parse(line: bytes, ids: array[int], floats: array[float]) -> _Parsed | None:
    """Return a record's members but its columns, which are added to the arrays, and where they are there."""
    if may_round(line):
        return None
    try:
        members = orjson.loads(line)
        begin, first = len(ids), len(floats)
        ids.fromlist(members.pop("prompt_token_ids"))
        middle = len(ids)
        ids.fromlist(members.pop("generation_token_ids"))
        floats.fromlist(members.pop("generation_log_probs"))
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError):
        return None  # no JSON, no record, or no ids below 2**32; what was added of it stays there unused
    return members, slice(begin, middle), slice(middle, len(ids)), slice(first, len(floats))


class _LogProbs:
    """Log probabilities of many records; orjson reads none that is not finite."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        with np.errstate(over="ignore", under="ignore"):
            narrow = values.astype(np.float32)
        self._exact = narrow == values
        self._all_exact = bool(self._exact.all())
        self._narrow, self._wide = _frozen(narrow), _frozen(values)

    def part(self, place: slice) -> FloatArray:
        """Return the values at a place, in the narrowest type that holds each of them exactly."""
        return (self._narrow if self._all_exact or self._exact[place].all() else self._wide)[place]


def _frozen(values: NDArray[Any]) -> NDArray[Any]:
    values.flags.writeable = False
    return values
