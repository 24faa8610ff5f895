"""What a live writer knows about the calls of its rollouts: open ones by id, recorded ones in 32 bytes each.

Kept for the joiner's question (which calls must the file hold?) and dropped on request, so a long-lived server's memory
follows the rollouts under way.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["CallIndex", "EndedCall", "RecordedCall"]

_ENTRY = struct.Struct("<16sQII")

EndedCall = tuple[str, str, int | None, int, int]
"""Call id, rollout id, and where its line lies: offset (None when there is no record), length and part.

The part is the number of the segment, 0 for the rollout's own file.
"""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """Where the record of one call lies.

    Attributes:
        call_id: ``model_call_id``.
        file: Name of the capture file or segment.
        offset: First byte of the record's line in it.
        length: Bytes of the line, line feed included.
    """

    call_id: str
    file: str
    offset: int
    length: int


class CallIndex:
    """Open and recorded calls by rollout; safe for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, str] = {}
        self._open_count: dict[str, int] = {}
        self._recorded: dict[str, bytearray] = {}
        self._withdrawn: set[str] = set()

    def begin(self, call_id: str, rollout_id: str) -> None:
        """Count a call as open."""
        with self._lock:
            self._open[call_id] = rollout_id
            self._open_count[rollout_id] = self._open_count.get(rollout_id, 0) + 1

    def end(self, ended: Iterable[EndedCall]) -> None:
        """Count calls as ended: each has its record, or its rollout is marked.

        A record at the start of a rollout's own file means that it was cleared before, and with it everything older.
        """
        with self._lock:
            for call_id, rollout_id, offset, length, part in ended:
                if call_id in self._withdrawn:
                    self._withdrawn.remove(call_id)
                    continue
                del self._open[call_id]
                left = self._open_count[rollout_id] - 1
                if left:
                    self._open_count[rollout_id] = left
                else:
                    del self._open_count[rollout_id]
                if offset is None:
                    continue
                entry = _ENTRY.pack(bytes.fromhex(call_id), offset, length, part)
                recorded = self._recorded.get(rollout_id)
                if recorded is None or offset == part == 0:
                    self._recorded[rollout_id] = bytearray(entry)
                else:
                    recorded += entry

    def forget(self, rollout_id: str) -> None:
        """Drop the list of a rollout's recorded calls."""
        with self._lock:
            self._recorded.pop(rollout_id, None)

    def withdraw(self, rollout_id: str) -> list[str]:
        """Take the open calls of a rollout out of it: they belong to an attempt that is over, and count no more.

        Returns:
            Their ids.
        """
        withdrawn: list[str] = []
        with self._lock:
            if self._open_count.pop(rollout_id, 0):
                withdrawn = [call_id for call_id, owner in self._open.items() if owner == rollout_id]
                self._withdrawn.update(withdrawn)
                self._open = {call_id: owner for call_id, owner in self._open.items() if owner != rollout_id}
        return withdrawn

    def open_count(self) -> int:
        """Return how many calls are open."""
        return len(self._open)

    def is_withdrawn(self, call_id: str) -> bool:
        """Whether an open call was withdrawn."""
        return call_id in self._withdrawn

    def has_open(self, rollout_id: str) -> bool:
        """Whether a call of the rollout is open."""
        with self._lock:
            return rollout_id in self._open_count

    def open_calls(self) -> dict[str, str]:
        """Return all open calls: call id to rollout id."""
        with self._lock:
            return dict(self._open)

    def open_call_ids(self, rollout_id: str) -> list[str]:
        """Return the ids of a rollout's open calls, in the order they began."""
        with self._lock:
            if rollout_id not in self._open_count:
                return []
            return [call_id for call_id, owner in self._open.items() if owner == rollout_id]

    def recorded_calls(self, rollout_id: str, name_of: Callable[[str, int], str]) -> list[RecordedCall]:
        """Return the rollout's recorded calls in the order they were written.

        Args:
            rollout_id: The rollout.
            name_of: Returns the name of the file or segment, from the rollout and the part.
        """
        with self._lock:
            recorded = bytes(self._recorded.get(rollout_id, b""))
        return [
            RecordedCall(call_id.hex(), name_of(rollout_id, part), offset, length)
            for call_id, offset, length, part in _ENTRY.iter_unpack(recorded)
        ]
