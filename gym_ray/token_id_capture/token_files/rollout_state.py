"""``<rollout>.tokens.state.json``: the lifecycle of one rollout, and the names of its files (B60-B62).

The file format also has an index of the records. It is never filled here, because it would have to be rewritten with
every record. Instead the version is computed: the stored one, plus one for each record that the stored index does not
cover. A writer that fills the index arrives at the same number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gym_ray import exact_json
from gym_ray.errors import RolloutIdError

__all__ = [
    "ENTRIES_SUFFIX",
    "INCOMPLETE_SUFFIX",
    "INTENTS_SUFFIX",
    "LOCK_SUFFIX",
    "STATE_SUFFIX",
    "RolloutState",
    "check_store_rollout_id",
]

ENTRIES_SUFFIX: Final = ".tokens.jsonl"
STATE_SUFFIX: Final = ".tokens.state.json"
INTENTS_SUFFIX: Final = ".tokens.intents"
INCOMPLETE_SUFFIX: Final = ".tokens.incomplete"
LOCK_SUFFIX: Final = ".tokens.lock"

_ROLLOUT_ID: Final = re.compile(r"[A-Za-z0-9._-]+")
_LONGEST_ID: Final = 255 - len(STATE_SUFFIX)
_FIELDS: Final = {
    "frozen": bool,
    "retired": bool,
    "incomplete": bool,
    "snapshot_id": str,
    "version": int,
    "entry_digests": dict,
    "indexed_size": int,
}


def check_store_rollout_id(rollout_id: object) -> str:
    """Return ``rollout_id`` if files can be named after it (B61, W37).

    Raises:
        RolloutIdError: They cannot; the message shows the value.
    """
    if not isinstance(rollout_id, str) or not _ROLLOUT_ID.fullmatch(rollout_id):
        raise RolloutIdError(f"{rollout_id!r} cannot name token files; use A-Z a-z 0-9 . _ -")
    if len(rollout_id) > _LONGEST_ID:
        raise RolloutIdError(
            f"{rollout_id!r} cannot name token files; it has {len(rollout_id)} characters, use at most {_LONGEST_ID}"
        )
    return rollout_id


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The lifecycle of a rollout; a missing file means the defaults.

    Attributes:
        frozen: A snapshot was taken; no new record is accepted.
        retired: The records were handed over and dropped.
        incomplete: Something was lost.
        snapshot_id: Names the snapshot, "" until there is one.
        version: Number of changes, less the records that the index does not cover.
        entry_digests: The index, call id to digest of its line; only another writer fills it.
        indexed_size: How many bytes of records the index covers.
        others: Members of the file that are unknown here, kept as they are.
    """

    frozen: bool = False
    retired: bool = False
    incomplete: bool = False
    snapshot_id: str = ""
    version: int = 0
    entry_digests: Mapping[str, str] = field(default_factory=dict)
    indexed_size: int = 0
    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_bytes(cls, data: bytes) -> RolloutState:
        """Read a state file.

        Raises:
            ValueError: It is not one; names the member that is wrong.
        """
        members = exact_json.loads(data)
        if not isinstance(members, dict):
            raise ValueError(f"must be an object, not {type(members).__name__}")  # noqa: TRY004 - bad content
        for name, kind in _FIELDS.items():
            if name in members and type(members[name]) is not kind:
                raise ValueError(f"{name} must be of type {kind.__name__}, but is {members[name]!r:.100}")
        known = {name: members[name] for name in _FIELDS if name in members}
        return cls(**known, others={name: value for name, value in members.items() if name not in _FIELDS})

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        members = {**self.others, **{name: getattr(self, name) for name in _FIELDS}}
        return json.dumps(members, sort_keys=True, separators=(",", ":")).encode()

    @property
    def has_index(self) -> bool:
        """Whether another writer filled the index, which then grows with the rollout."""
        return bool(self.entry_digests) or self.indexed_size != 0
