"""Compact evidence: a rollout's payloads once each, in parts that its record refers to by content (D163).

A record in the contract's shape repeats what went over the wire: the capture's history grows with every call, and the
trajectory holds it in calls, turns and conversations. :func:`compacted` takes each distinct item out once;
:func:`inline` gives back exactly what was there.
"""

from __future__ import annotations

from gym_ray.evidence.compact.parts import Parts, merged_parts
from gym_ray.evidence.compact.record import (
    COMPACT_FIELD,
    compacted,
    inline,
    is_compact,
    without_payloads,
)

__all__ = [
    "COMPACT_FIELD",
    "Parts",
    "compacted",
    "inline",
    "is_compact",
    "merged_parts",
    "without_payloads",
]
