"""A model of the token store in memory: the rules of its files without the files.

A test gives the model and a real store the same operations, damage included, and compares what they return. The model
also records which rules about damage and repetition (W16 and others) the operations needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["ModelRefusal", "TokenStoreModel"]


class ModelRefusal(Exception):  # noqa: N818 - an answer, not an error of the model
    """The operation must be refused.

    Args:
        kind: ``retired``, ``frozen``, ``call_id_reused`` or ``damaged``.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(slots=True)
class _Line:
    """A line of the record file: a record by its fields, or None for one that is no JSON."""

    record: dict[str, Any] | None
    terminated: bool

    @property
    def call_id(self) -> str:
        return str((self.record or {}).get("cid", "c0"))

    def is_same(self, fields: dict[str, Any]) -> bool:
        own = {"cid": "c0", **(self.record or {})}
        other = {"cid": "c0", **fields}
        return {**own, "created_at": None} == {**other, "created_at": None}


@dataclass(slots=True)
class TokenStoreModel:
    """One rollout. Records are given by the fields that tell them apart, ``cid`` (the call id) among them.

    Attributes:
        fired: Rules that were needed so far: W16, W17, W18, W20, W24, W25, W39.
        snapshots: How many snapshots began; the last one is that of the rollout.
    """

    lines: list[_Line] = field(default_factory=list)
    intents: list[str] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    frozen: bool = False
    retired: bool = False
    incomplete: bool = False
    base_version: int = 0
    state_unreadable: bool = False
    fired: set[str] = field(default_factory=set)
    snapshots: int = 0

    def put(self, fields: dict[str, Any]) -> None:
        """Keep a record."""
        self._refuse_retired()
        first = next((line for line in self.lines if line.record is not None and line.call_id == _id(fields)), None)
        if self.frozen and not self.lines:
            raise ModelRefusal("frozen")
        self._repair_tail()
        self._store_state()
        if first is not None and first.is_same(fields):
            self.fired |= {"W24"} if {"cid": "c0", **(first.record or {})} != {"cid": "c0", **fields} else set()
            self.fired |= {"W25"} if self.frozen else set()
            return
        if self.frozen:
            raise ModelRefusal("frozen")
        if first is not None:
            self.mark()
            raise ModelRefusal("call_id_reused")
        self.fired |= {"W39"} if self._strays() else set()
        self.lines.append(_Line(dict(fields), terminated=True))
        self.files |= {"jsonl", "lock"}

    def begin(self, call_id: str) -> None:
        """Begin a call."""
        self._refuse_retired()
        if self.frozen:
            raise ModelRefusal("frozen")
        self.intents.append(call_id)
        self.files |= {"intents", "lock"}

    def withdraw(self, call_id: str) -> None:
        """Take a begun call back."""
        self._refuse_retired()
        if self.frozen:
            raise ModelRefusal("frozen")
        self.intents = [intent for intent in self.intents if intent != call_id]
        self.files |= {"lock"}

    def mark(self) -> None:
        """Mark the rollout."""
        self._refuse_retired()
        self.fired |= {"W17"} if self.state_unreadable else set()
        self.state_unreadable = False
        self.incomplete = True
        self.base_version += 1
        self.files |= {"incomplete", "state.json", "lock"}

    def freeze(self) -> tuple[list[str], bool, int]:
        """Freeze; return call ids, whether something is missing, and the version."""
        self._refuse_retired()
        self._repair_tail()
        self.fired |= {"W17"} if self.state_unreadable else set()
        self.state_unreadable = False
        self._fold_marks()
        if not self.frozen:
            self.frozen = True
            self.base_version += 1
            self.snapshots += 1
        self.files |= {"state.json", "lock"}
        calls = self.calls()
        self.fired |= {"W39"} if self._strays() else set()
        self.fired |= {"W20"} if len(self.lines) > len(calls) + self._strays() else set()
        dangling = set(self.intents) - set(calls)
        return calls, bool(self.incomplete or dangling or self._strays()), self.version()

    def drop(self, *, is_right_snapshot: bool, version: int) -> bool:
        """Retire."""
        if not self.frozen or not is_right_snapshot:
            return False
        if not self.retired:
            self._fold_marks()
        if self.version() != version:
            return False
        self.base_version, self.retired = self.version(), True
        self.lines, self.intents = [], []
        self.files -= {"jsonl", "intents", "incomplete"}
        return True

    def delete(self) -> None:
        """Remove everything but the lock."""
        fresh = TokenStoreModel(files={"lock"} if self.files else set(), fired=self.fired, snapshots=self.snapshots)
        for each in fields(self):
            setattr(self, each.name, getattr(fresh, each.name))

    def sweep(self, *, is_old_enough: bool) -> int:
        """Remove what a retired rollout left."""
        if not self.retired or not is_old_enough:
            return 0
        self.delete()
        self.files = set()
        return 1

    def lose_state(self, *, unreadable: bool) -> None:
        """Remove or empty the lifecycle file."""
        self.frozen = self.retired = self.incomplete = False
        self.base_version = 0
        self.state_unreadable = unreadable
        self.files -= set() if unreadable else {"state.json"}

    def add_bytes(self, record: dict[str, Any] | None, *, terminated: bool) -> None:
        """Write a line to the record file, past the store."""
        self.lines.append(_Line(record, terminated))
        self.files |= {"jsonl"}

    def calls(self) -> list[str]:
        """Return the call ids of readable records, in file order."""
        return list(dict.fromkeys(line.call_id for line in self.lines if line.record is not None))

    def read(self) -> list[str]:
        """Return what a reader gets, who changes nothing."""
        lines = self.lines[:-1] if self.lines and self.lines[-1].record is None else self.lines
        if any(line.record is None for line in lines) or self._strays():
            raise ModelRefusal("damaged")
        return self.calls()

    def is_incomplete(self) -> bool:
        """Return whether the rollout is marked."""
        self.fired |= {"W17"} if self.state_unreadable else set()
        self.fired |= {"W18"} if "incomplete" in self.files and not self.incomplete else set()
        return self.incomplete or "incomplete" in self.files

    def version(self) -> int:
        """Return the version."""
        return self.base_version + len(self.calls()) + self._strays()

    def _refuse_retired(self) -> None:
        if self.retired:
            raise ModelRefusal("retired")

    def _repair_tail(self) -> None:
        """A last line that is no JSON goes; one that lacks its line feed gets it."""
        if self.lines and self.lines[-1].record is None:
            self.lines.pop()
        if self.lines and not self.lines[-1].terminated:
            self.fired.add("W16")
            self.lines[-1].terminated = True

    def _store_state(self) -> None:
        if "state.json" not in self.files or self.state_unreadable:
            self.fired |= {"W17"} if self.state_unreadable else set()
            self.state_unreadable = False
            self._fold_marks()
        self.files |= {"state.json", "lock"}

    def _fold_marks(self) -> None:
        if "incomplete" in self.files and not self.incomplete:
            self.fired.add("W18")
            self.incomplete = True
            self.base_version += 1

    def _strays(self) -> int:
        firsts: dict[str, _Line] = {}
        strays = 0
        for line in self.lines:
            if line.record is None:
                strays += line is not self.lines[-1]
            elif not firsts.setdefault(line.call_id, line).is_same(line.record):
                strays += 1
        return strays


def _id(fields: dict[str, Any]) -> str:
    return str(fields.get("cid", "c0"))
