"""Verifies the captures of an object store: every segment's index against its lines, marks, repeated calls.

It reads only, so it may run beside a run. What it cannot know is whether a call was lost without any trace.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from gym_ray import exact_json
from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import CaptureError, StorageError
from gym_ray.model_call_capture.findings import CaptureVerification, Findings
from gym_ray.model_call_capture.records import build_record
from gym_ray.model_call_capture.registry import OWN_DIRECTORY, own_place
from gym_ray.model_call_capture.segments.layout import (
    MARKS,
    SEGMENTS,
    SegmentRecord,
    decode_segment,
    parse_segment_name,
)
from gym_ray.storage.opening import open_store
from gym_ray.storage.store import SegmentStore

__all__ = ["verify_segments"]

_JOIN_AGAIN = "the rollout's record says so after `gym-ray eval rejoin`; run the rollout again if the call matters"


def verify_segments(location: CaptureLocation) -> CaptureVerification:
    """Look at every segment, mark and declaration of a place. Memory: one segment, and about 150 bytes a call.

    Raises:
        StorageError: The place cannot be listed.
        SettingsError: Nothing that is installed can open it.
    """
    options = location.storage_options or None
    store = open_store(location.where, storage_options=options)
    own = open_store(own_place(location.where), storage_options=options)
    try:
        return _Verifier(store, own).result()
    finally:
        store.close()
        own.close()


class _Verifier:
    def __init__(self, store: SegmentStore, own: SegmentStore) -> None:
        self._store, self._own = store, own
        self._findings = Findings()
        self._first: dict[str, tuple[str, int]] = {}
        """Call id: the segment that has it, and the checksum of its line."""
        self._rollouts: set[str] = set()
        self._segments = self._empty = self._lines = self._calls = self._size = 0

    def result(self) -> CaptureVerification:
        for name in self._store.list(SEGMENTS):
            if parse_segment_name(name) is None:
                remedy = "nobody reads it here; move it away if it is not yours to keep"
                self._findings.add("warning", "foreign_file", Path(name), "no segment of captures", remedy)
            else:
                self._verify_segment(name)
                self._findings.forget_kinds()
        marked = self._add_marks()
        self._add_dead()
        return CaptureVerification(
            self._store.place,
            self._segments,
            self._empty,
            self._lines,
            self._calls,
            self._size,
            marked,
            self._findings.count("error"),
            self._findings.count("warning"),
            self._findings.kept(),
        )

    def _verify_segment(self, name: str) -> None:
        path = Path(name)
        try:
            data = self._store.read(name)
            index, lines = decode_segment(data, name=name)
        except (CaptureError, StorageError) as error:
            remedy = "restore the object; until then every rollout of the place may miss a call"
            self._findings.add("error", "damaged_segment", path, str(error), remedy)
            return
        self._segments += 1
        self._empty += not lines
        self._size += len(data)
        for number, (record, line) in enumerate(zip(index.records, lines, strict=True), start=1):
            self._lines += 1
            self._rollouts.add(record.rollout_id)
            self._calls += self._verify_line(name, number, record, line)

    def _verify_line(self, name: str, number: int, record: SegmentRecord, line: bytes | None) -> bool:
        path = Path(name)
        if line is None:
            what = f"call {record.call_id} of rollout {record.rollout_id}: its line is not what was written"
            self._findings.add("error", "damaged_line", path, what, _JOIN_AGAIN, line=number)
            return False
        exchange = exact_json.loads_object(line)
        try:
            built = build_record(exchange or {}, number - 1)
        except ValueError as error:
            what = f"no model call can be read: {str(error).splitlines()[0]}"
            self._findings.add("error", "no_call_record", path, what, _JOIN_AGAIN, line=number)
            return False
        if exchange is None or built.model_call_id != record.call_id:
            what = f"the index says call {record.call_id}, and the line is that of {built.model_call_id}"
            self._findings.add("error", "wrong_index", path, what, _JOIN_AGAIN, line=number)
            return False
        self._note(name, number, record)
        return True

    def _note(self, name: str, number: int, record: SegmentRecord) -> None:
        first = self._first.get(record.call_id)
        if first is None:
            self._first[record.call_id] = (name, record.crc32c)
            return
        if first[1] == record.crc32c:
            what, remedy = f"call {record.call_id} is in {first[0]}, too", "nothing: the same record counts once"
            self._findings.add("warning", "published_twice", Path(name), what, remedy, line=number)
        else:
            what = f"call {record.call_id} is in {first[0]}, too, with another record"
            remedy = "no reference to it is exact; find out which producer repeats ids"
            self._findings.add("error", "repeated_call_id", Path(name), what, remedy, line=number)

    def _add_marks(self) -> int:
        marked = [name.removeprefix(MARKS).removesuffix(".json") for name in self._store.list(MARKS)]
        for rollout_id in marked:
            code, what = "marked_incomplete", "at least one call of this rollout was lost; its record says so"
            if rollout_id not in self._rollouts:
                code, what = "marker_without_file", "a call of this rollout was lost, and no record of it is here"
            remedy = "look for the server's warning of that time; run the rollout again if the call matters"
            self._findings.add("warning", code, Path(f"{MARKS}{rollout_id}.json"), what, remedy)
        return len(marked)

    def _add_dead(self) -> None:
        for name in self._own.list("dead/"):
            writer_id = PurePosixPath(name).stem
            what = f"model server {writer_id} was declared dead: calls that it had open may be lost"
            remedy = "start a server of that name on the same node, which marks the rollouts of lost calls"
            self._findings.add("warning", "dead_writer", Path(OWN_DIRECTORY) / name, what, remedy)
