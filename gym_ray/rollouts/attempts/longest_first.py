"""Orders the rows of a resumed run so that those that took longest when they failed start first (D44)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

from gym_ray import exact_json
from gym_ray.rollouts.run_files.run_index import read_index, written_of
from gym_ray.rollouts.run_files.run_log import read_record
from gym_ray.rollouts.run_paths import RunPaths

__all__ = ["elapsed_seconds", "longest_first"]


def elapsed_seconds(record: Mapping[str, Any]) -> float | None:
    """Return how long a failed attempt says it took; None when it names no positive number."""
    response = record.get("response")
    metadata = response.get("metadata") if isinstance(response, Mapping) else None
    inner = metadata.get("elapsed_seconds") if isinstance(metadata, Mapping) else None
    for value in (record.get("elapsed_seconds"), inner):
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
    return None


def longest_first(paths: RunPaths, rows: int) -> array[int] | None:
    """Return the ordinals of all rows, longest first; None when no failure says how long it took.

    Reads the failed records that the index names, one at a time. Rows without a time keep their order behind.

    Raises:
        StorageError: The index or a failed record cannot be read.
    """
    longest: dict[int, float] = {}
    if not paths.index.exists():
        return None
    for frame in read_index(paths.index):
        written = written_of(frame)
        if written.file != "failures" or frame.ordinal >= rows:
            continue
        elapsed_s = elapsed_seconds(exact_json.loads_object(read_record(paths, written)) or {})
        if elapsed_s is not None:
            longest[frame.ordinal] = max(longest.get(frame.ordinal, 0.0), elapsed_s)
    if not longest:
        return None
    order = array("Q", sorted(longest, key=lambda ordinal: (-longest[ordinal], ordinal)))
    order.extend(ordinal for ordinal in range(rows) if ordinal not in longest)
    return order
