"""What is said about a place in the end: how captures are kept there, and what stands against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Mode", "PlaceFinding", "PlaceReport", "Severity"]


class Mode(StrEnum):
    """How captures are kept at a place."""

    FILES = "files"
    """Every model server appends to files of a directory that all share."""
    SEGMENTS = "segments"
    """Every model server publishes segments in an object store."""
    HOSTED = "hosted"
    """One writer on the first node writes for all model servers; other nodes need not see the directory."""
    UNUSABLE = "unusable"


class Severity(StrEnum):
    """How much a finding weighs."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class PlaceFinding:
    """Something that was found.

    Attributes:
        code: Short name that does not change.
        severity: Whether it makes the place unusable as things are.
        nodes: Whom it is about.
        what: One sentence that names node and place.
        remedy: What to do.
    """

    code: str
    severity: Severity
    nodes: tuple[str, ...]
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class PlaceReport:
    """The judgement.

    Attributes:
        place: Where, without credentials.
        watchers: Who looked.
        mode: How captures would be kept there.
        usable: Whether they can be with the writer that is set.
        findings: Errors first.
        nodes: Name to what the node says of the place: mount, space, clock.
        worst_lag_s: What changed, to the longest time until another node saw it; None: not seen.
        latencies_s: Kind of work to (median, longest), over all nodes.
        pairs: How many pairs of nodes were compared.
    """

    place: str
    watchers: str
    mode: Mode
    usable: bool
    findings: tuple[PlaceFinding, ...]
    nodes: Mapping[str, str]
    worst_lag_s: Mapping[str, float | None]
    latencies_s: Mapping[str, tuple[float, float]]
    pairs: int
