"""What a sink remembers of the calls it was given: the same call again has the same key, and another one is refused.

Hashes and places only, of a bounded number of calls, the oldest forgotten first. A call that is on its way is waited
for, not written a second time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gym_ray.errors import RecordConflictError, StorageError, StorageTimeoutError
from gym_ray.token_id_capture.staging.parquet.calls.call_rows import CallItem
from gym_ray.token_id_capture.staging.parquet.segments.committer import RowPlace, Ticket

__all__ = ["StagedCalls"]

_DIGEST_BYTES = 32


@dataclass(slots=True, eq=False)
class _Known:
    """One call: what it holds, and either where it is or what will tell.

    ``handing_in`` is held until there is a ticket, or none will be.
    """

    content: bytes
    handing_in: threading.Lock = field(default_factory=threading.Lock)
    ticket: Ticket[CallItem] | None = None
    place: RowPlace | None = None


class StagedCalls:
    """The calls of one sink, by rollout and call id.

    Args:
        submit: Hands an item to the committer, waiting for room at most so many seconds, of so many that were set.
        max_calls: Calls that are remembered.
        timeout_s: What callers were promised at most to wait, for messages.
    """

    def __init__(
        self, submit: Callable[[CallItem, float, float], Ticket[CallItem]], max_calls: int, timeout_s: float
    ) -> None:
        self._submit, self._max_calls, self._timeout_s = submit, max_calls, timeout_s
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str], _Known] = {}

    def place_of(self, item: CallItem, until: float) -> tuple[RowPlace, bool]:
        """Return where a call is, once it is durable, and whether it had been handed in before.

        Args:
            item: The call.
            until: ``time.monotonic()`` at which to give up.

        Raises:
            RecordConflictError: The call was handed in with other content.
            StorageTimeoutError: It is not known to be durable in time.
            StorageError: It could not be written; nothing of it is there.
        """
        call, content = (item.rollout_id, item.model_call_id), item.content()
        with self._lock:
            known = self._calls.get(call)
            again = known is not None and (known.ticket is None or not known.ticket.failed)
            if known is None or not again:
                known = self._remember(call, content)
        if again:
            _require_same(call, content, known.content)
            ticket = _ticket_of(known, until)
        else:
            ticket = self._hand_in(call, known, item, until)
        if known.place is None:
            known.place = self._wait(call, known, ticket, until)
            known.ticket = None
        return known.place, again

    def _remember(self, call: tuple[str, str], content: bytes) -> _Known:
        while len(self._calls) >= self._max_calls:
            del self._calls[next(iter(self._calls))]
        known = self._calls[call] = _Known(content)
        known.handing_in.acquire()  # nobody else can have it yet; released once there is a ticket
        return known

    def _hand_in(self, call: tuple[str, str], known: _Known, item: CallItem, until: float) -> Ticket[CallItem]:
        try:
            known.ticket = ticket = self._submit(item, max(0.0, until - time.monotonic()), self._timeout_s)
        except BaseException:
            self._forget(call, known)
            raise
        finally:
            known.handing_in.release()
        return ticket

    def _wait(self, call: tuple[str, str], known: _Known, ticket: Ticket[CallItem] | None, until: float) -> RowPlace:
        if ticket is None:
            raise StorageError(f"{_name(call)} was handed in twice at once, and the first could not be written")
        try:
            return ticket.wait(max(0.0, until - time.monotonic()), self._timeout_s)
        except StorageError:
            if not ticket.being_written:  # else whoever hands it in again waits for this very write
                self._forget(call, known)
            raise

    def _forget(self, call: tuple[str, str], known: _Known) -> None:
        with self._lock:
            if self._calls.get(call) is known:
                del self._calls[call]


def _ticket_of(known: _Known, until: float) -> Ticket[CallItem] | None:
    """Return the ticket of a call that another thread hands in, which may have failed to."""
    if not known.handing_in.acquire(timeout=max(0.0, until - time.monotonic())):
        raise StorageTimeoutError("the same call waits for room to be written, and has waited too long")
    known.handing_in.release()
    return known.ticket


def _require_same(call: tuple[str, str], content: bytes, known: bytes) -> None:
    if content == known:
        return
    what = "other attachments" if content[:_DIGEST_BYTES] == known[:_DIGEST_BYTES] else "another record"
    raise RecordConflictError(f"{_name(call)} was staged with {what} before; what is staged is never replaced")


def _name(call: tuple[str, str]) -> str:
    return f"{call[0]}/{call[1]}"
