"""Publishes records as segments: one request for all that wait, and a record is acknowledged once it has ended well."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gym_ray.errors import CaptureError, StorageError, StorageExistsError
from gym_ray.model_call_capture.segments.layout import (
    LARGEST_SEGMENT_BYTES,
    MOST_RECORDS,
    encode_segment,
    segment_name,
)
from gym_ray.storage.store import SegmentStore

__all__ = ["SegmentItem", "SegmentWriting", "publish_once"]

_log = logging.getLogger(__name__)
_PAUSES_S = (0.1, 0.5)
"""Before a request that failed is repeated; client libraries have repeated it by then."""


class SegmentItem(Protocol):
    """One record on its way to a segment."""

    @property
    def rollout_id(self) -> str:
        """Its rollout."""

    @property
    def call_id(self) -> str:
        """Its call."""

    def encode(self) -> bytes:
        """Return the record as a line, once."""

    def wanted(self) -> bool:
        """Whether it is still to be written."""

    def committed(self, offset: int, length: int, part: int = 0) -> None:
        """The line is durable in segment ``part``."""

    def failed(self, error: Exception) -> None:
        """The line may not be durable."""


class SegmentWriting:
    """The segments of one writer.

    Args:
        store: Where they go.
        writer_id: Whose they are; nobody else writes under this name.
    """

    def __init__(self, store: SegmentStore, writer_id: str) -> None:
        self._store, self._writer_id = store, writer_id
        self._lock = threading.Lock()
        self._last = 0

    @property
    def last(self) -> int:
        """The highest number given out. What is unwanted by now is in no segment above it."""
        return self._last

    def send(self, items: Sequence[SegmentItem]) -> None:
        """Publish records, and tell each its outcome; one that is not wanted any more is told nothing."""
        batch: list[tuple[SegmentItem, bytes]] = []
        nbytes = 0
        for item in items:
            try:
                line = item.encode()
            except Exception as error:  # noqa: BLE001 - boundary: one record that cannot be encoded fails alone
                item.failed(error)
                continue
            if batch and (nbytes + len(line) > LARGEST_SEGMENT_BYTES or len(batch) == MOST_RECORDS):
                self._publish(batch)
                batch, nbytes = [], 0
            batch.append((item, line))
            nbytes += len(line)
        self._publish(batch)

    def _publish(self, batch: list[tuple[SegmentItem, bytes]]) -> None:
        with self._lock:
            # The number comes first: whoever withdraws a call and then asks for the last number learns of this one.
            self._last += 1
            seq = self._last
        batch = [(item, line) for item, line in batch if item.wanted()]
        if not batch:
            return
        try:
            data = encode_segment(self._writer_id, seq, [(item.rollout_id, item.call_id, line) for item, line in batch])
            publish_once(self._store, segment_name(self._writer_id, seq), data)
        except Exception as error:  # noqa: BLE001 - boundary: whatever went wrong is told to all whose records these were
            for item, _ in batch:
                item.failed(error)
            return
        offset = 0
        for item, line in batch:
            item.committed(offset, len(line), seq)
            offset += len(line)


def publish_once(store: SegmentStore, name: str, data: bytes, *, pause: Callable[[float], object] = time.sleep) -> None:
    """Put a value under a name of our own; durable when it returns.

    A request whose answer was lost may have worked: the name is taken then, and holds our bytes.

    Args:
        store: Where it goes.
        name: The name.
        data: The value.
        pause: Waits between two attempts.

    Raises:
        StorageExistsError: Something else has the name.
        StorageError: It could not be done; the value may be there all the same.
    """
    put = store.create if store.exclusive else store.publish
    for pause_s in (*_PAUSES_S, None):
        try:
            put(name, data)
        except StorageExistsError:
            if store.read(name) != data:
                raise
        except (StorageError, CaptureError) as error:  # the second: whoever has the store cannot be reached
            if pause_s is None:
                raise
            _log.warning("%s; tried again", error)
            pause(pause_s)
            continue
        return
