"""``SegmentCaptures``: captured calls of an object store, merged from the segments of many writers.

A living writer names the place of each of its calls, so a join reads ranges by name and needs no listing; a listing
that is late cannot hide an acknowledged call. Writers that do not answer are searched by their indexes. Must never read
the records of other rollouts, and never mix two uses of one rollout id.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from gym_ray import exact_json
from gym_ray.capture_location import CaptureLocation
from gym_ray.correlation import check_rollout_id
from gym_ray.errors import CaptureError, StorageError, StorageMissingError
from gym_ray.model_call_capture.heard_writers import GRACE_S, HeardWriters, WriterLook
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import FoundCalls, WrittenCalls, ask_writer
from gym_ray.model_call_capture.reading_clock import ReadingClock
from gym_ray.model_call_capture.registry import RegisteredWriter, own_place
from gym_ray.model_call_capture.segments.layout import MARKS, mark_name, parse_segment_name, record_problem
from gym_ray.model_call_capture.segments.reading_cleared import Cleared, read_cleared, write_cleared
from gym_ray.model_call_capture.segments.reading_index import FoundRecord, SegmentIndexes
from gym_ray.storage.opening import open_store
from gym_ray.storage.store import SegmentStore

__all__ = ["SegmentCaptures"]

_FORGET_S = 5.0
_DAMAGED = b"{\n"
"""Stands in a snapshot for a record that cannot be read, so that it is counted as one."""

_log = logging.getLogger(__name__)


class SegmentCaptures:
    """Implements :class:`gym_ray.model_call_capture.captures.Captures` over segments.

    Args:
        store: Where the segments are.
        own: Where servers and collectors keep what is theirs; beside it.
        clock: Clocks.
    """

    def __init__(self, store: SegmentStore, own: SegmentStore, clock: ReadingClock | None = None) -> None:
        self._store, self._own, self._clock = store, own, clock or ReadingClock()
        self._writers = HeardWriters(own, self._clock)
        self._indexes = SegmentIndexes(store)
        self._lock = threading.Lock()
        self._used: set[str] | None = None
        self._listed = False
        self._given_out: dict[str, int] = {}
        self._withdrawn: set[str] = set()

    @classmethod
    def of(cls, location: CaptureLocation) -> SegmentCaptures:
        """Return the captures of a place, without touching it yet.

        Raises:
            SettingsError: Nothing that is installed can open the URL.
        """
        options = location.storage_options or None
        return cls(
            open_store(location.where, storage_options=options),
            open_store(own_place(location.where), storage_options=options),
        )

    @property
    def place(self) -> str:
        """The URL, without credentials."""
        return self._store.place

    async def written_calls(
        self,
        rollout_ids: Sequence[str],
        *,
        client: httpx.AsyncClient,
        timeout_s: float,
        begun_at: float | None = None,
    ) -> dict[str, WrittenCalls]:
        """Ask every writer that may live; see the protocol. A silent one is a gap until it cannot matter any more."""
        look = await asyncio.to_thread(self._look)
        body = {"rollout_ids": list(rollout_ids), "timeout_s": timeout_s}
        asked = [writer for writer in look.writers if self._writers.is_to_be_asked(writer.writer_id)]
        answers = await asyncio.gather(*(ask_writer(client, writer, body, timeout_s) for writer in asked))
        answered = {
            writer.writer_id: answer for writer, answer in zip(asked, answers, strict=True) if answer is not None
        }
        unreachable = await asyncio.to_thread(self._unreachable, look, frozenset(answered), begun_at)
        found = {rollout_id: FoundCalls() for rollout_id in rollout_ids}
        for answer in answered.values():
            for rollout_id, entry in answer["rollouts"].items():
                found[rollout_id].take(entry)
        return {
            rollout_id: WrittenCalls(
                recorded=tuple(entry.recorded),
                open_call_ids=tuple(entry.open_call_ids),
                unreachable_writers=unreachable,
                marked_incomplete=entry.incomplete,
                tokens_lost=entry.tokens_lost,
                answered_writers=tuple(answered),
                begun_at=begun_at,
            )
            for rollout_id, entry in found.items()
        }

    def _look(self) -> WriterLook:
        """Look at the writers; list all segments where one of them may have come and gone since."""
        look = self._writers.look()
        with self._lock:
            listed, self._listed = self._listed, True
        if look.changed or not listed:
            self._indexes.list_all()
        return look

    def _unreachable(self, look: WriterLook, answered: frozenset[str], begun_at: float | None) -> tuple[str, ...]:
        silent = []
        for writer in look.writers:
            if writer.writer_id in answered:
                self._writers.answered(writer.writer_id)
            elif self._writers.silent(writer.writer_id, begun_at):
                silent.append(writer.writer_id)
        return (*silent, *look.unreadable)

    async def forget(
        self, rollout_ids: Sequence[str], *, client: httpx.AsyncClient, withdraw_open: bool = True
    ) -> tuple[str, ...]:
        """Tell the writers that were not declared dead; see the protocol."""
        look = await asyncio.to_thread(self._writers.look, max_age_s=0.0 if withdraw_open else _FORGET_S)
        body = {"rollout_ids": [], "timeout_s": 0.0, "forget": list(rollout_ids), "withdraw_open": withdraw_open}
        told = [writer for writer in look.writers if self._writers.is_to_be_asked(writer.writer_id)]
        answers = await asyncio.gather(*(ask_writer(client, writer, body, _FORGET_S) for writer in told))
        heard = {w.writer_id: answer for w, answer in zip(told, answers, strict=True) if answer is not None}
        if withdraw_open:
            self._take_withdrawn(heard)
        answered = frozenset(heard)
        await asyncio.to_thread(self._unreachable, look, answered, None)
        return (*(writer.writer_id for writer in told if writer.writer_id not in answered), *look.unreadable)

    def _take_withdrawn(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what writers say of calls that they gave up: in which segments, at most, their records may still come.

        A rollout that had such a call counts as used, so that clearing it leaves a note.
        """
        with self._lock:
            for writer_id, answer in answers.items():
                last = answer.get("last_segment")
                if isinstance(last, int):
                    self._given_out[writer_id] = max(last, self._given_out.get(writer_id, 0))
                self._withdrawn.update(answer.get("withdrawn", ()))

    def snapshot(self, rollout_id: str, calls: WrittenCalls | None) -> CaptureSnapshot:
        """Read what the writers named, and what is listed of all others; see the protocol."""
        check_rollout_id(rollout_id)
        try:
            if calls is None:
                self._look()
            lines, doubtful = self._lines(rollout_id, calls)
            # The mark is looked at last: a writer that failed in between has set it by now.
            return CaptureSnapshot(b"".join(lines) if lines else None, doubtful or self.is_incomplete(rollout_id))
        except (StorageError, CaptureError) as error:
            return CaptureSnapshot(None, incomplete=False, error=str(error))

    def is_incomplete(self, rollout_id: str) -> bool:
        """Return whether the mark is there; see the protocol."""
        return self._store.exists(mark_name(rollout_id))

    def _lines(self, rollout_id: str, calls: WrittenCalls | None) -> tuple[list[bytes], bool]:
        """Return a rollout's lines, each call once and in order, and whether something doubtful was left out."""
        answered = frozenset(() if calls is None else calls.answered_writers)
        found, damaged = self._search(rollout_id, answered)
        named = () if calls is None else calls.recorded
        if not found and not named:
            return [_DAMAGED] * damaged, False
        cleared, doubtful = read_cleared(self._own, rollout_id), False
        lines: dict[str, tuple[float, str, bytes]] = {}
        oldest = None if calls is None or calls.begun_at is None else calls.begun_at - GRACE_S
        for call in named:
            parsed = parse_segment_name(call.file)
            if parsed is None:
                raise CaptureError(f"{self.place}: a writer says that call {call.call_id} is in {call.file}")
            verdict = self._verdict(cleared, *parsed)
            doubtful |= verdict == "doubtful"
            if verdict == "ours":
                self._keep(lines, call.call_id, self._range(call.file, call.offset, call.length))
        for record in found:
            verdict = self._verdict(cleared, record.writer_id, record.seq)
            doubtful |= verdict == "doubtful"
            if verdict != "ours" or record.record.call_id in lines:
                continue
            if not self._keep(lines, record.record.call_id, self._checked(record)):
                damaged += 1
        kept = [
            (started, call_id, line) for started, call_id, line in lines.values() if not oldest or started >= oldest
        ]
        doubtful |= len(kept) < len(lines)  # whoever used the id before made these calls
        return [line for _, _, line in sorted(kept)] + [_DAMAGED] * damaged, doubtful

    def _search(self, rollout_id: str, answered: frozenset[str]) -> tuple[list[FoundRecord], int]:
        """Return a rollout's records of writers that did not answer, and how many segments of theirs are damaged.

        A damaged index may have held a record of any rollout, so it counts for each.
        """
        registered = {writer.writer_id for writer in self._writers.look(max_age_s=_FORGET_S).writers}
        found: list[FoundRecord] = []
        damaged = 0
        for writer_id in sorted((self._indexes.writers() | self._writers.known()) - answered):
            records, broken = self._indexes.records(writer_id, rollout_id, may_write=writer_id in registered)
            found += records
            damaged += len(broken)
        return found, damaged

    def _verdict(self, cleared: Cleared | None, writer_id: str, seq: int) -> str:
        return "ours" if cleared is None else cleared.verdict(writer_id, seq, self._writers.started_at(writer_id))

    def _range(self, name: str, offset: int, length: int) -> bytes:
        try:
            return self._store.read_range(name, offset, length)
        except StorageMissingError:
            return b""  # the join misses the call by its id, and says so

    def _checked(self, found: FoundRecord) -> bytes:
        line = self._range(found.name, found.record.offset, found.record.length)
        problem = record_problem(line, found.record)
        if problem:
            _log.error("%s/%s: %s", self.place, found.name, problem)
        return b"" if problem else line

    def _keep(self, lines: dict[str, tuple[float, str, bytes]], call_id: str, line: bytes) -> bool:
        """Take a line if it is the record of its call, and return whether it is."""
        exchange = exact_json.loads_object(line) if line.endswith(b"\n") else None
        if exchange is None or exchange.get("model_call_id") != call_id:
            return False
        started = exchange.get("started_at")
        lines[call_id] = (float(started) if isinstance(started, int | float) else 0.0, call_id, line)
        return True

    def clear(self, rollout_id: str) -> None:
        """Drop what is recorded so far; see the protocol.

        Writes nothing where the id was never used and every writer could be told.
        """
        mark, silent = mark_name(rollout_id), self._writers.silent_now()
        with self._lock:
            if self._used is None:
                self._used = self._earlier_ids()
            is_used = rollout_id in self._used or rollout_id in self._withdrawn
            self._withdrawn.discard(rollout_id)
            self._used.add(rollout_id)
        if not is_used and not silent:
            return
        look = self._writers.look()
        registered = {writer.writer_id: writer for writer in look.writers}
        writers: dict[str, int | None] = {
            writer_id: self._last_number(writer_id) if writer_id in registered else None
            for writer_id in self._indexes.list_all() | self._writers.known()
        }
        write_cleared(self._own, rollout_id, Cleared(writers, self._clock.wall(), silent & writers.keys()))
        self._store.delete(mark)

    def _last_number(self, writer_id: str) -> int:
        with self._lock:
            given_out = self._given_out.get(writer_id, 0)
        return max(given_out, self._indexes.last_number(writer_id, listed=True))

    def _earlier_ids(self) -> set[str]:
        """Return every rollout that has a record or a mark now; read once, when a run begins to clear."""
        self._writers.look()
        return set(self._all_ids())

    def _all_ids(self) -> Iterator[str]:
        for writer_id in self._indexes.list_all() | self._writers.known():
            yield from self._indexes.rollout_ids(writer_id)
        for name in self._store.list(MARKS):
            yield name.removeprefix(MARKS).removesuffix(".json")

    def rollout_ids(self) -> Iterator[str]:
        """Yield the rollouts of all indexes and marks; see the protocol."""
        self._writers.look()
        yield from frozenset(self._all_ids())

    def writers(self) -> tuple[RegisteredWriter, ...]:
        """Return the writers that are registered now.

        Raises:
            StorageError: They cannot be listed.
        """
        return self._writers.look().writers

    def close(self) -> None:
        """Give up connections; idempotent."""
        self._store.close()
        self._own.close()
