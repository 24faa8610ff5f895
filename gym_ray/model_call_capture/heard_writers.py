"""Which writers live, where no lock on this machine tells: those that answer.

A writer that does not answer may be dead, or cut off with records of its own, so every join says so. After
``DEAD_AFTER_S`` of silence it is declared dead by an object that all readers see; attempts that began well after
that cannot have used it. One that answers again lives again. Must never take silence for an answer.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from gym_ray import exact_json
from gym_ray.errors import CaptureError, StorageError, StorageExistsError, StorageMissingError
from gym_ray.model_call_capture.reading_clock import ReadingClock
from gym_ray.model_call_capture.registry import RegisteredWriter, dead_name, parse_writer, writer_name
from gym_ray.storage.store import SegmentStore

__all__ = ["DEAD_AFTER_S", "GRACE_S", "HeardWriters", "WriterLook"]

DEAD_AFTER_S = 15.0
"""A writer that has been asked and silent for so long is declared dead."""
GRACE_S = 60.0
"""Attempts that began so long after a writer was declared dead cannot have calls with it."""
_ASK_AGAIN_S = 30.0
_WRITERS = "writers/"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _State:
    """What this process knows of one writer: first silent, declared dead, asked last; None where that never was."""

    silent_since: float | None = None
    declared_at: float | None = None
    asked_at: float | None = None


@dataclass(frozen=True, slots=True)
class WriterLook:
    """The registered writers at one moment.

    Attributes:
        writers: Those whose registration can be read.
        unreadable: Ids of the others.
        changed: A writer is gone that was there, or so much time has passed since the last look that one may have come
            and gone.
    """

    writers: tuple[RegisteredWriter, ...]
    unreadable: tuple[str, ...]
    changed: bool


class HeardWriters:
    """The registered writers of an object store, or of a directory whose writers have no log there; thread-safe.

    Args:
        own: The store beside the captures.
        clock: Clocks.
        unseen_s: A writer does not come, write and go within that many seconds.
    """

    def __init__(self, own: SegmentStore, clock: ReadingClock, *, unseen_s: float = 10.0) -> None:
        self._own, self._clock, self._unseen_s = own, clock, unseen_s
        self._lock = threading.Lock()
        self._known: dict[str, RegisteredWriter] = {}
        self._states: dict[str, _State] = {}
        self._looked_at: float | None = None
        self._last: WriterLook | None = None

    def started_at(self, writer_id: str) -> float | None:
        """Return when a writer started that this process has seen registered; None when nobody knows."""
        with self._lock:
            writer = self._known.get(writer_id)
        return writer.started_at or None if writer is not None else None

    def known(self) -> frozenset[str]:
        """Return the ids of all writers that this process has ever seen registered."""
        with self._lock:
            return frozenset(self._known)

    def look(self, *, max_age_s: float = 0.0) -> WriterLook:
        """Return the registered writers; one that a listing leaves out is gone only if its name leads to nothing.

        Args:
            max_age_s: A look this old is new enough.

        Raises:
            StorageError: They cannot be listed.
        """
        now = self._clock.steady()
        with self._lock:
            last, looked_at = self._last, self._looked_at
        if last is not None and looked_at is not None and now - looked_at < max_age_s:
            return last
        listed = {name.removeprefix(_WRITERS).removesuffix(".json") for name in self._own.list(_WRITERS)}
        before = set() if last is None else {writer.writer_id for writer in last.writers}
        hidden = {writer_id for writer_id in before - listed if self._own.exists(writer_name(writer_id))}
        writers, unreadable = [], []
        for writer_id in sorted(listed | hidden):
            try:
                writers.append(self._read(writer_id))
            except StorageMissingError:
                continue  # it signed off since it was listed
            except (StorageError, CaptureError) as error:
                _log.warning("%s", error)
                unreadable.append(writer_id)
        gone = bool(before - listed - hidden)
        late = looked_at is None or now - looked_at > self._unseen_s
        found = WriterLook(tuple(writers), tuple(unreadable), gone or late)
        with self._lock:
            self._last, self._looked_at = found, now
        return found

    def _read(self, writer_id: str) -> RegisteredWriter:
        with self._lock:
            known = self._known.get(writer_id)
        if known is not None:
            return known  # a registration never changes: a process that starts again has another id
        writer = parse_writer(self._own.read(writer_name(writer_id)))
        with self._lock:
            self._known[writer_id] = writer
        return writer

    def is_to_be_asked(self, writer_id: str) -> bool:
        """Return whether a writer is worth a question: one declared dead is, now and then."""
        now = self._clock.steady()
        with self._lock:
            state = self._states.setdefault(writer_id, _State())
            if state.declared_at is None or state.asked_at is None or now - state.asked_at >= _ASK_AGAIN_S:
                state.asked_at = now
                return True
        return False

    def answered(self, writer_id: str) -> None:
        """Take down that a writer answered; one that was declared dead lives again.

        Raises:
            StorageError: The declaration cannot be removed.
        """
        with self._lock:
            state = self._states.setdefault(writer_id, _State())
            was_dead, state.silent_since, state.declared_at = state.declared_at is not None, None, None
        if was_dead:
            self._own.delete(dead_name(writer_id))

    def silent_now(self) -> frozenset[str]:
        """Return the writers that gave no answer when they were asked last."""
        with self._lock:
            return frozenset(name for name, state in self._states.items() if state.silent_since is not None)

    def silent(self, writer_id: str, begun_at: float | None) -> bool:
        """Take down that a writer gave no answer; return whether calls of an attempt may be unknown for that.

        Raises:
            StorageError: A declaration cannot be read or made.
        """
        now = self._clock.steady()
        with self._lock:
            state = self._states.setdefault(writer_id, _State())
            if state.silent_since is None:
                state.silent_since = now
            silent_s, declared_at = now - state.silent_since, state.declared_at
        if declared_at is None:
            declared_at = self._declared(writer_id, declare=silent_s >= DEAD_AFTER_S)
            with self._lock:
                state.declared_at = declared_at
        return declared_at is None or begun_at is None or begun_at < declared_at + GRACE_S

    def _declared(self, writer_id: str, *, declare: bool) -> float | None:
        """Return when a writer was declared dead, by us or by somebody else; None when it was not."""
        name = dead_name(writer_id)
        if declare:
            declared_at = self._clock.wall()
            try:
                self._own.create(name, exact_json.dumps({"declared_at": declared_at}) + b"\n")
            except StorageExistsError:
                pass  # another reader was faster; what it wrote counts
            else:
                _log.warning("%s: declared dead: no answer for %.0f s", writer_id, DEAD_AFTER_S)
                return declared_at
        try:
            said = (exact_json.loads_object(self._own.read(name)) or {}).get("declared_at")
        except StorageMissingError:
            return None
        return float(said) if isinstance(said, int | float) else None
