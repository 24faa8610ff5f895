"""An object store as the place of a writer's records: segments, marks and a registration there, an open log here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gym_ray import exact_json
from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import CaptureError, GymRayError
from gym_ray.model_call_capture.backends import WriterIdentity
from gym_ray.model_call_capture.batches import Batches
from gym_ray.model_call_capture.local_adoption import begun_log, local_logs
from gym_ray.model_call_capture.open_log import OpenLog
from gym_ray.model_call_capture.registry import dead_name, encode_writer, own_place, writer_name
from gym_ray.model_call_capture.segments.adoption import lost_calls_of
from gym_ray.model_call_capture.segments.layout import LARGEST_SEGMENT_BYTES, MOST_RECORDS, mark_name, segment_name
from gym_ray.model_call_capture.segments.reading_cleared import read_cleared
from gym_ray.model_call_capture.segments.writing import SegmentWriting
from gym_ray.model_call_capture.ticket import Ticket
from gym_ray.storage.opening import open_store
from gym_ray.storage.store import SegmentStore

__all__ = ["OpenedSegments", "SegmentBackend"]


@dataclass(frozen=True, slots=True)
class OpenedSegments:
    """Segments at work for one writer."""

    open_log: OpenLog
    commits: Batches[Ticket]
    writing: SegmentWriting
    stores: tuple[SegmentStore, SegmentStore]
    writer_id: str
    marks_first: bool = False  # the open log tells of the call until its mark is durable, and a store may take long

    def name_of(self, rollout_id: str, part: int) -> str:  # noqa: ARG002 - a segment holds many rollouts
        """Return the name of a segment."""
        return segment_name(self.writer_id, part)

    def last_segment(self) -> int | None:
        """Return the highest number that was given out, 0 for none."""
        return self.writing.last

    def withdraw(self, call_ids: Sequence[str]) -> None:
        """Do nothing: no segment above :meth:`last_segment` has them, and the others are named when it is cleared."""

    def sign_off(self, *, finished: bool, marked: bool) -> None:
        """Take the writer out of the registry and give up its log; see the protocol.

        A writer that leaves something unsaid stays registered, so that joins know that its calls are unknown.
        """
        store, own = self.stores
        try:
            if finished and marked:
                own.delete(writer_name(self.writer_id))
        except GymRayError as error:
            raise OSError(str(error)) from error
        finally:
            self.open_log.close()
            if finished:
                store.close()
                own.close()


class SegmentBackend:
    """An object store: immutable segments of one writer, each one request for all records that waited.

    Args:
        store: Where segments and marks go.
        own: Where the writer is registered.
        local_dir: Directory of this machine, with locks, that survives the process; the open log goes below it.
    """

    def __init__(self, store: SegmentStore, own: SegmentStore, *, local_dir: Path) -> None:
        self._store, self._own = store, own
        self._logs = local_logs(local_dir, store.place)
        self.place = store.place

    @classmethod
    def at(cls, location: CaptureLocation, *, local_dir: Path) -> SegmentBackend:
        """Return the backend of a place.

        Raises:
            SettingsError: Nothing that is installed can open the URL, or its client knows an option by another name.
        """
        options = location.storage_options
        store = open_store(location.where, storage_options=options)
        return cls(store, open_store(own_place(location.where), storage_options=options), local_dir=local_dir)

    def mark_incomplete(self, rollout_id: str) -> None:
        """Put a mark beside the segments; see the protocol."""
        try:
            self._store.publish(mark_name(rollout_id), exact_json.dumps({"marked_at": time.time()}) + b"\n")
        except GymRayError as error:
            raise CaptureError(f"{self.place}: cannot mark {rollout_id} incomplete: {error}") from error

    def lost_calls(self, writer_id: str, open_calls: Mapping[str, str]) -> Mapping[str, list[str]]:
        """Return what a predecessor lost; see :class:`~gym_ray.model_call_capture.local_adoption.Heritage`.

        What a rollout that has begun anew since then owes to an earlier attempt is nobody's loss.
        """
        lost = lost_calls_of(self._store, writer_id, open_calls)
        return {rollout_id: ids for rollout_id, ids in lost.items() if not self._was_dropped(rollout_id, writer_id)}

    def _was_dropped(self, rollout_id: str, writer_id: str) -> bool:
        cleared = read_cleared(self._own, rollout_id)
        return cleared is not None and writer_id in cleared.writers and cleared.writers[writer_id] is None

    def remove_writer(self, writer_id: str) -> None:
        """Remove a predecessor's registration, and that it is dead."""
        self._own.delete(writer_name(writer_id))
        self._own.delete(dead_name(writer_id))

    def open(
        self,
        identity: WriterIdentity,
        *,
        on_done: Callable[[Sequence[Ticket]], None],
        open_calls: Callable[[], int],
    ) -> OpenedSegments:
        """Begin to write segments; see the protocol."""
        try:
            _ = self._store.exclusive  # a real attempt to write, whose answer is kept
        except GymRayError as error:
            raise CaptureError(f"{self.place}: captures cannot be written: {error}") from error

        def register() -> None:
            self._own.publish(writer_name(identity.writer_id), encode_writer(identity.registration(None)))

        open_log = begun_log(self._logs, identity.label, identity.writer_id, self, self.place, register)
        writing = SegmentWriting(self._store, identity.writer_id)
        return OpenedSegments(
            open_log=open_log,
            commits=Batches(
                self.place,
                writing.send,
                on_done=on_done,
                open_calls=open_calls,
                most_items=MOST_RECORDS,
                most_bytes=LARGEST_SEGMENT_BYTES,
            ),
            writing=writing,
            stores=(self._store, self._own),
            writer_id=identity.writer_id,
        )
