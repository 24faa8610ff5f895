"""Where everything lies below the root of a staging store: the names, and the checks that keep them apart.

::

    <root>/store.json                                   which store this is; created once, never replaced
    <root>/<partition>/<writer>/<seq:08>.<kind>.parquet a segment: whole or absent, its presence is the commit
    <root>/<partition>/writers/<number>.json            who writes token segments, and how many when it is closed
    <root>/frozen/<rollout id>.json                     the rollout takes no new records
    <root>/frozen/dropped/<rollout id>.json             the rollout was handed over: its rows are dead
    <root>/retired/<3 hex>/<32 hex>-<random>.json       calls of one rollout that were retired; begins with its hash
    <root>/moved/<partition>/<writer>-<seq>.json        where compaction put the rows of a segment

Nobody else may build these names: a reader finds a segment by its name alone, without an index that could disagree.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

__all__ = [
    "CALLS_KIND",
    "DEFAULT_PARTITION",
    "EVENTS_KIND",
    "FROZEN_PREFIX",
    "MOVED_PREFIX",
    "RETIRED_PREFIX",
    "STORE_FILE",
    "TOKENS_KIND",
    "SegmentName",
    "check_partition",
    "frozen_name",
    "moved_name",
    "new_writer",
    "parse_segment_name",
    "partition_prefix",
    "retired_name",
    "rollout_of_frozen",
]

STORE_FILE: Final = "store.json"
DEFAULT_PARTITION: Final = "default"
CALLS_KIND: Final = "calls"
TOKENS_KIND: Final = "tokens"
EVENTS_KIND: Final = "events"
FROZEN_PREFIX: Final = "frozen/"
RETIRED_PREFIX: Final = "retired/"
MOVED_PREFIX: Final = "moved/"

_PARTITION = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", re.ASCII)
_SEGMENT = re.compile(
    r"(?P<partition>[A-Za-z0-9_-][A-Za-z0-9._-]{0,99})/(?P<writer>[0-9a-f]{20})/(?P<seq>[0-9]{8,18})\.(?P<kind>[a-z]+)\.parquet",
    re.ASCII,
)
_RESERVED: Final = frozenset({"frozen", "retired", "moved", STORE_FILE})
_WRITER_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class SegmentName:
    """Which segment: what its file name says.

    Attributes:
        partition: The partition that the writer was told.
        writer: 20 hex digits, one writer object of one process.
        seq: Counts the segments of the writer from 0; a number may be missing, for a commit that failed.
        kind: What its rows are, ``calls``, ``tokens`` or ``events``.
    """

    partition: str
    writer: str
    seq: int
    kind: str

    def __str__(self) -> str:
        return f"{self.partition}/{self.writer}/{self.seq:08}.{self.kind}.parquet"


def parse_segment_name(name: str) -> SegmentName | None:
    """Return what the name of a segment says, None for the name of anything else."""
    match = _SEGMENT.fullmatch(name)
    if match is None or match["partition"] in _RESERVED:
        return None
    found = SegmentName(match["partition"], match["writer"], int(match["seq"]), match["kind"])
    return found if str(found) == name else None


def check_partition(partition: str) -> str:
    """Return the partition.

    Raises:
        ValueError: It is no name that a partition can have.
    """
    if not _PARTITION.fullmatch(partition) or partition in _RESERVED:
        raise ValueError(
            f"{partition!r} cannot be a staging partition: up to 100 letters, digits, '.', '_' and '-', "
            f"the first no '.', and none of {', '.join(sorted(_RESERVED))}"
        )
    return partition


def partition_prefix(partition: str) -> str:
    """Return what the names of all segments of a partition begin with."""
    return f"{partition}/"


def new_writer() -> str:
    """Return the name of a new writer: 80 random bits, so that no two ever share a directory."""
    return secrets.token_hex(_WRITER_BYTES)


def frozen_name(rollout_id: str) -> str:
    """Return the name of the marker that freezes a rollout; an id that is no file name is percent-encoded."""
    quoted = quote(rollout_id, safe="")
    return f"{FROZEN_PREFIX}{_without_leading_dot(quoted)}.json"


def rollout_of_frozen(name: str) -> str:
    """Return the rollout whose freezing a marker tells.

    Raises:
        ValueError: It is no name of such a marker.
    """
    if not name.startswith(FROZEN_PREFIX) or not name.endswith(".json"):
        raise ValueError(f"{name!r} is no marker of a frozen rollout")
    return unquote(name.removeprefix(FROZEN_PREFIX).removesuffix(".json"))


def retired_name(uuid: str) -> str:
    """Return the name of one retirement."""
    return f"{RETIRED_PREFIX}{uuid}.json"


def moved_name(partition: str, writer: str, seq: int) -> str:
    """Return the name of the note that says where the rows of a segment went."""
    return f"{MOVED_PREFIX}{partition}/{writer}-{seq}.json"


def _without_leading_dot(name: str) -> str:
    return f"%2E{name[1:]}" if name.startswith(".") else name
