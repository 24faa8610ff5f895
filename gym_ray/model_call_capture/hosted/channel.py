"""What a model server says to the process that writes its records, and what that answers. Everything pickles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gym_ray.model_call_capture.registry import RegisteredWriter

__all__ = ["HostedRecord", "Receipt", "RecordChannel"]


@dataclass(frozen=True, slots=True)
class HostedRecord:
    """One record on its way to the process that writes it.

    Attributes:
        rollout_id: Its rollout.
        call_id: Its call; the same record may be sent again, and is written once.
        line: The record as a capture file has it.
    """

    rollout_id: str
    call_id: str
    line: bytes


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one record.

    Attributes:
        offset: Where its durable line begins; None when there is none.
        error: Why not, "" when the call was withdrawn.
    """

    offset: int | None
    error: str = ""


class RecordChannel(Protocol):
    """The way to a hosted writer. Every method blocks, runs on any thread, and may be repeated.

    Every method raises ``GymRayError`` when it is not known to have been done.
    """

    @property
    def place(self) -> str:
        """Where the records go, for messages."""

    def append_many(self, records: Sequence[HostedRecord], *, again: bool = False) -> Sequence[Receipt]:
        """Make records durable and return the receipt of each.

        Args:
            records: The records.
            again: They may have been sent before, also to an earlier process of the writer: those that are in their
                files already are not written again.
        """

    def withdraw(self, call_ids: Sequence[str]) -> None:
        """Make sure that no record of these calls is written from now on."""

    def mark_incomplete(self, rollout_id: str) -> None:
        """Mark a rollout as having lost a record, durably."""

    def lost_calls(self, writer_id: str, open_calls: Mapping[str, str]) -> Mapping[str, list[str]]:
        """Return which of these calls are recorded nowhere: rollout id to call ids."""

    def register(self, writer: RegisteredWriter) -> None:
        """Register a model server's writer, so that joins ask it."""

    def remove_writer(self, writer_id: str) -> None:
        """Take a writer out of the registry; a missing one is fine."""
