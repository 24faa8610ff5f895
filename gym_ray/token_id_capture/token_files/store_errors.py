"""What a token store refuses, by kind: a frozen or retired rollout, a reused call id, a damaged record."""

from __future__ import annotations

from gym_ray.errors import CaptureError

__all__ = [
    "DamagedRecordError",
    "RecordConflictError",
    "RefusedRecordError",
    "RolloutFrozenError",
    "RolloutRetiredError",
]


class RolloutFrozenError(CaptureError, RuntimeError):
    """The rollout has been frozen; it takes no more calls (B64, B66)."""


class RolloutRetiredError(CaptureError, RuntimeError):
    """The rollout's records were handed over and dropped (B64-B67)."""


class RecordConflictError(CaptureError, ValueError):
    """A call id was used again for another record (B64)."""


class RefusedRecordError(CaptureError, ValueError):
    """A record that no reader could take back was not stored: its numbers, or a contradiction in it (W21, B8)."""


class DamagedRecordError(CaptureError, ValueError):
    """A stored line is no record of its rollout; the message names the file and where in it (B73)."""
