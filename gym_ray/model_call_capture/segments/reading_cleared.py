"""Which records belong to an earlier use of a rollout id: clearing on a store that cannot truncate.

``cleared/<rollout id>.json`` names for each writer the last segment that is dropped. It is read by its name, so that no
listing can hide it. A record of a writer that it does not name, and that was there before, is doubtful: it is left out,
and the rollout counts as incomplete, for a wrong link is worse than a lost sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gym_ray import exact_json
from gym_ray.errors import CaptureError, StorageMissingError
from gym_ray.model_call_capture.segments.layout import cleared_name
from gym_ray.storage.store import SegmentStore

__all__ = ["Cleared", "read_cleared", "write_cleared"]

Verdict = Literal["ours", "dropped", "doubtful"]


@dataclass(frozen=True, slots=True)
class Cleared:
    """How a rollout was cleared last.

    Attributes:
        writers: Writer to the number of its last segment that is dropped, None for all of them.
        cleared_at: When, unix seconds.
        silent: Of these, the writers that could not be told; what they write afterwards may be of before.
    """

    writers: Mapping[str, int | None]
    cleared_at: float
    silent: frozenset[str] = frozenset()

    def verdict(self, writer_id: str, seq: int, started_at: float | None) -> Verdict:
        """Return what a record of a segment is.

        Args:
            writer_id: Who wrote it.
            seq: Number of its segment.
            started_at: When that writer started, unix seconds; None when nobody knows.
        """
        if writer_id in self.writers:
            last = self.writers[writer_id]
            if last is None or seq <= last:
                return "dropped"
            return "doubtful" if writer_id in self.silent else "ours"
        return "ours" if started_at is not None and started_at > self.cleared_at else "doubtful"


def read_cleared(own: SegmentStore, rollout_id: str) -> Cleared | None:
    """Return how a rollout was cleared last, None when it never was.

    Raises:
        RolloutIdError: The id cannot be a name here.
        StorageError: It cannot be found out.
        CaptureError: The note is damaged; nobody can tell the records of two attempts apart.
    """
    name = cleared_name(rollout_id)
    try:
        said = exact_json.loads_object(own.read(name)) or {}
    except StorageMissingError:
        return None
    writers, cleared_at = said.get("writers"), said.get("cleared_at")
    if not isinstance(writers, dict) or not isinstance(cleared_at, int | float):
        raise CaptureError(f"{own.place}/{name}: damaged; nobody knows which records of {rollout_id} are of before")
    return Cleared(writers, float(cleared_at), frozenset(said.get("silent", ())))


def write_cleared(own: SegmentStore, rollout_id: str, cleared: Cleared) -> None:
    """Note that a rollout begins anew, in place of an earlier note.

    Raises:
        StorageError: It could not be done.
    """
    note = {
        "rollout_ids": [rollout_id],
        "writers": dict(cleared.writers),
        "silent": sorted(cleared.silent),
        "cleared_at": cleared.cleared_at,
    }
    own.publish(cleared_name(rollout_id), exact_json.dumps(note) + b"\n")
