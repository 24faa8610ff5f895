"""What was seen of a place, node by node and pair by pair, before anybody judges it. All of it travels.

Nodes are counted from 0, the node of whoever asks; a pair is ``(who looked, whose change)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gym_ray.storage.shared_place.mounts import MountFacts

__all__ = [
    "DIRECTORY_CHANGES",
    "STORE_CHANGES",
    "Alone",
    "Change",
    "NodeEvidence",
    "Pair",
    "PlaceEvidence",
    "PlaceFacts",
]

Pair = tuple[int, int]


class Change(StrEnum):
    """What one node does and the others look for.

    The first tells whether the place is the same one at all.
    """

    IDENTITY = "identity"
    APPEND = "append"
    NEW = "new name"
    TRUNCATE = "truncation"
    REPLACE = "replaced value"
    LIST = "listing"
    REMOVE = "removal"


DIRECTORY_CHANGES = (Change.APPEND, Change.NEW, Change.TRUNCATE, Change.REPLACE, Change.LIST, Change.REMOVE)
STORE_CHANGES = (Change.NEW, Change.REPLACE, Change.LIST, Change.REMOVE)


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """What a node finds where the place should be.

    Attributes:
        there: Whether it is there, after whoever asks has created it if need be.
        problem: Why nothing can be tried there, "" if something can.
        mount: What holds the directory.
        free_bytes: Space that is left for this user, None where nobody counts.
        free_inodes: How many files more, None where nobody counts.
    """

    there: bool
    problem: str = ""
    mount: MountFacts | None = None
    free_bytes: int | None = None
    free_inodes: int | None = None


@dataclass(frozen=True, slots=True)
class Alone:
    """What a node could do there by itself.

    Attributes:
        problem: What failed, "" if nothing did.
        locks: "" if a lock keeps a second holder on the same node out, else what is wrong.
        latencies_s: Kind of work to how long each took.
    """

    problem: str = ""
    locks: str = ""
    latencies_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class NodeEvidence:
    """Everything about one node.

    Attributes:
        name: As messages call it.
        facts: None until it has told.
        alone: The same.
        skew_s: How far its clock is ahead of the first node's, and how exactly that is known; None: not known.
        lost: Why it takes no further part, "" while it does.
    """

    name: str
    facts: PlaceFacts | None = None
    alone: Alone | None = None
    skew_s: tuple[float, float] | None = None
    lost: str = ""

    @property
    def works_alone(self) -> bool:
        """Whether it can read and write there by itself."""
        return not self.lost and self.alone is not None and not self.alone.problem


@dataclass(slots=True)
class PlaceEvidence:
    """Everything that was seen.

    Attributes:
        place: Where, without credentials.
        is_store: Whether it is an object store.
        watchers: What the nodes are, such as ``2 nodes of a Ray cluster``.
        nodes: By number.
        lags_s: What, then pair: after how long it was seen, 0.0 at the first look, None not at all.
        locks: Pair (who tried, who held): "" if kept out, else what happened instead.
        releases: Pair (who tried, who had held): "" if the lock could be had again.
        races: Way to make a name, then name: who got it.
        patience_s: How long a node looked for a change.
    """

    place: str
    is_store: bool
    watchers: str
    nodes: list[NodeEvidence]
    patience_s: float
    lags_s: dict[Change, dict[Pair, float | None]] = field(default_factory=dict)
    locks: dict[Pair, str] = field(default_factory=dict)
    releases: dict[Pair, str] = field(default_factory=dict)
    races: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def same(self, reader: int, writer: int) -> bool:
        """Return whether two nodes, of which one may be the other, see one place."""
        if reader == writer:
            return True
        seen = self.lags_s.get(Change.IDENTITY, {})
        return seen.get((reader, writer)) is not None and seen.get((writer, reader)) is not None
