"""What a failure says of further tries, in the 32 bits that an index frame has for it (D53, D54).

Bit 0: the failure is terminal. Bit 1: it is terminal even where ``retry_terminal_timeouts`` is set. Bit 2: a further
try may reuse what this one delivered (D55). Bits 8 to 15: the code of its class. Codes are stored, so a code never
changes its meaning; a class that has none is 255.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = [
    "FAILURE_CLASS_CODES",
    "OTHER_CLASS",
    "REUSES_DELIVERABLE",
    "TERMINAL",
    "TERMINAL_TIMEOUTS_RETRIED",
    "class_code",
    "failure_flags",
    "flags_class",
]

TERMINAL = 1
"""The failure forbids any further try."""

TERMINAL_TIMEOUTS_RETRIED = 2
"""The failure forbids any further try even when terminal timeouts are tried again (D54)."""

REUSES_DELIVERABLE = 4
"""The record asks that a further try reuses what this one delivered (D55)."""

OTHER_CLASS = 255
"""Stands for every class that has no code."""

FAILURE_CLASS_CODES: Mapping[str, int] = MappingProxyType(
    {
        "agent_request_failed": 1,
        "agent_run_error": 2,
        "agent_timeout": 3,
        "judge_failed": 4,
        "engine_unavailable": 5,
        "worker_lost": 6,
        "node_lost": 7,
        "invalid_row": 8,
        "timeout_exceeded": 9,
        "skipped": 10,
        "judge_invalid": 11,
        "quarantined": 12,
        "cancelled": 13,
    }
)

_NEVER_TERMINAL = frozenset({"timeout_exceeded", "reference_missing", "eval_missing", "transport_ineligible"})
_FAULT_FIELDS = ("_ng_failure_class", "_ng_failure_fault", "fault")  # no text says where a verifier names its fault


def class_code(failure_class: object) -> int:
    """Return the code of a class of failure, 0 for none."""
    if failure_class is None:
        return 0
    return FAILURE_CLASS_CODES.get(failure_class, OTHER_CLASS) if isinstance(failure_class, str) else OTHER_CLASS


def flags_class(flags: int) -> int:
    """Return the code of the class in a frame's flags, 0 for none."""
    return flags >> 8 & 0xFF


def failure_flags(record: Mapping[str, Any]) -> int:
    """Return the flags of a failed attempt's record (D54)."""
    failure_class = record.get("_ng_failure_class")
    by_flag = bool(record.get("_ng_failure_terminal"))
    if failure_class == "skipped":
        timeouts_retried = True
    elif any(isinstance(record.get(name), str) and record[name] in _NEVER_TERMINAL for name in _FAULT_FIELDS):
        timeouts_retried = False
    else:
        timeouts_retried = by_flag
    bits = TERMINAL * by_flag | TERMINAL_TIMEOUTS_RETRIED * timeouts_retried
    bits |= REUSES_DELIVERABLE * bool(record.get("reuse_cached_deliverable"))
    return bits | class_code(failure_class) << 8
