"""Segments whose footer has been read: each read once, also by many threads at once, and kept within a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Final

from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.layout import CALLS_KIND
from gym_ray.token_id_capture.staging.parquet.segments.segment_reader import SegmentReader

__all__ = ["SegmentCache"]

_MAX_BYTES: Final = 64 * 1024 * 1024


class SegmentCache:
    """The segments of one store that somebody reads.

    Args:
        store: Where they lie.
        kind: The kind of rows that they hold.
        max_bytes: Memory of what is kept; the segment used last is kept whatever it takes.
    """

    def __init__(self, store: SegmentStore, *, kind: str = CALLS_KIND, max_bytes: int = _MAX_BYTES) -> None:
        self._store, self._kind, self._max_bytes = store, kind, max_bytes
        self._lock = threading.Lock()
        self._readers: OrderedDict[str, SegmentReader] = OrderedDict()
        self._opening: dict[str, Future[SegmentReader]] = {}
        self._bytes = 0

    def open(self, name: str) -> SegmentReader:
        """Return a segment, whose footer is read unless it was or is being read.

        Raises:
            StorageMissingError: There is no such segment.
            StorageError: It could not be read.
            ValueError: It is damaged, or no segment of this kind.
        """
        with self._lock:
            reader = self._readers.get(name)
            if reader is not None:
                self._readers.move_to_end(name)
                return reader
            opening = self._opening.get(name)
            mine: Future[SegmentReader] = Future()
            if opening is None:
                self._opening[name] = mine
        return self._open(name, mine) if opening is None else opening.result()

    def forget(self, name: str) -> None:
        """Drop a segment: it is gone from the store."""
        with self._lock:
            reader = self._readers.pop(name, None)
            self._bytes -= reader.weight if reader is not None else 0

    def _open(self, name: str, opening: Future[SegmentReader]) -> SegmentReader:
        try:
            reader = SegmentReader(self._store, name, kind=self._kind)
        except BaseException as error:
            with self._lock:
                del self._opening[name]
            opening.set_exception(error)  # who waits for the same footer is told the same
            raise
        with self._lock:
            del self._opening[name]
            self._readers[name] = reader
            self._bytes += reader.weight
            while self._bytes > self._max_bytes and len(self._readers) > 1:
                _, dropped = self._readers.popitem(last=False)
                self._bytes -= dropped.weight
        opening.set_result(reader)
        return reader
