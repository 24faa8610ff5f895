"""What compaction is about to do, written down first, so that whoever comes after a crash can finish it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.layout import MOVED_PREFIX, parse_segment_name
from gym_ray.token_id_capture.staging.parquet.segments.schema import FORMAT, FORMAT_VERSION

__all__ = ["CompactionPlan", "is_plan", "read_plan"]

_SUFFIX: Final = ".plan.json"


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """One step of compaction.

    Attributes:
        target: The segment to be written.
        sources: The segments whose calls it is to hold.
    """

    target: str
    sources: tuple[str, ...]

    @property
    def name(self) -> str:
        """Where the plan is while it is carried out.

        Raises:
            ValueError: The target is no name of a segment.
        """
        parsed = parse_segment_name(self.target)
        if parsed is None:
            raise ValueError(f"{self.target!r} is no segment")
        return f"{MOVED_PREFIX}{parsed.partition}/{parsed.writer}{_SUFFIX}"

    def encoded(self) -> bytes:
        """Return the plan as it is stored."""
        document = {"format": FORMAT, "version": FORMAT_VERSION, "target": self.target, "sources": list(self.sources)}
        return json.dumps(document).encode() + b"\n"


def is_plan(name: str) -> bool:
    """Whether a name in a store is one of a plan."""
    return name.startswith(MOVED_PREFIX) and name.endswith(_SUFFIX)


def read_plan(store: SegmentStore, name: str) -> CompactionPlan:
    """Return a plan.

    Raises:
        StorageMissingError: It is gone.
        StorageError: It could not be read.
        ValueError: It is damaged.
    """
    try:
        document: Any = json.loads(store.read(name))
        plan = CompactionPlan(str(document["target"]), tuple(map(str, document["sources"])))
        sound = document["format"] == FORMAT and document["version"] == FORMAT_VERSION and plan.name == name
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{store.place}/{name} is damaged: {error}") from error
    if not sound:
        raise ValueError(f"{store.place}/{name} is no plan in version {FORMAT_VERSION}")
    return plan
