"""Why calls were not captured, counted by class: coordinates carry no reason, an operator needs one (C330)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

__all__ = ["FAILURE_KINDS", "CaptureFailure", "FailureCounts", "FailureKind", "text_of"]

FailureKind: TypeAlias = Literal[
    "prefix_mismatch",
    "invalid_tokens",
    "invalid_extras",
    "unexpected",
    "sink_rejected",
    "sink_raised",
    "sink_answer",
    "adapter",
    "deadline",
    "failed_by_caller",
]
"""The prompt does not begin with the prefix; tokens or extras cannot be staged; building the record failed in a way
that nobody foresaw; the sink said no, raised, or answered something that is no result; the adapter could not read the
answer; staging took too long; the caller gave the call up."""

FAILURE_KINDS: Final[tuple[FailureKind, ...]] = get_args(FailureKind)


@dataclass(frozen=True, slots=True)
class CaptureFailure:
    """Why one call was not captured.

    Attributes:
        kind: Its class.
        reason: What was found, for a log.
    """

    kind: FailureKind
    reason: str

    @classmethod
    def raised(cls, kind: FailureKind, error: Exception) -> CaptureFailure:
        """Return the failure that something else raised, with the kind of its error."""
        return cls(kind, f"{type(error).__name__}: {text_of(error)}")


class FailureCounts:
    """Counts failures; may be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(FAILURE_KINDS, 0)

    def add(self, kind: FailureKind) -> None:
        """Count one failure."""
        with self._lock:
            self._counts[kind] += 1

    def snapshot(self) -> Mapping[str, int]:
        """Return the count of every kind at one moment."""
        with self._lock:
            return dict(self._counts)


def text_of(error: Exception) -> str:
    """Return what an error says; an error of foreign code may not even do that."""
    try:
        return str(error)
    except Exception as unreadable:  # noqa: BLE001 - the text of a foreign error is foreign code
        return f"its text cannot be read: {type(unreadable).__name__}"
