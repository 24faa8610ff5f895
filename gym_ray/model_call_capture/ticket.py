"""One exchange on its way to its file: what the commit threads know of it, and the loop's waiting answer does not."""

from __future__ import annotations

import time

from gym_ray.model_call_capture.acks import LoopAcks
from gym_ray.model_call_capture.call_index import CallIndex
from gym_ray.model_call_capture.exchanges.encoding import RecordEncoder
from gym_ray.model_call_capture.exchanges.exchange import Exchange
from gym_ray.model_call_capture.exchanges.telemetry import CallOutcome
from gym_ray.model_call_capture.store import CAPTURE_SUFFIX

__all__ = ["Ticket"]

_LARGE_BYTES = 256 * 1024
"""An exchange of more bytes takes milliseconds to encode, which no other file should wait for."""
_PATIENCE_SHARE, _LONGEST_PATIENCE_S = 5, 0.5


class Ticket:
    """One exchange on its way to its file; the commit threads' side of a waiting answer."""

    __slots__ = ("acks", "encoder", "error", "exchange", "file_name", "index", "length", "offset", "outcome", "part")

    def __init__(self, exchange: Exchange, acks: LoopAcks[Ticket], index: CallIndex, encoder: RecordEncoder) -> None:
        self.exchange, self.acks, self.index, self.encoder = exchange, acks, index, encoder
        self.outcome: CallOutcome | None = None
        self.file_name = f"{exchange.rollout_id}{CAPTURE_SUFFIX}"  # the id was checked when the exchange began
        self.error: Exception | None = None
        self.offset: int | None = None
        self.length = self.part = 0

    @property
    def rollout_id(self) -> str:
        """The rollout of the call."""
        return self.exchange.rollout_id

    @property
    def call_id(self) -> str:
        """The call's ``model_call_id``."""
        return self.exchange.call_id

    @property
    def nbytes(self) -> int:
        """About how much memory the exchange takes before it is encoded."""
        return self.exchange.body_bytes

    @property
    def patience_s(self) -> float:
        """How long the record may wait for others: a share of the time that its call took."""
        return min(_LONGEST_PATIENCE_S, max(0.0, time.time() - self.exchange.started_at) / _PATIENCE_SHARE)

    @property
    def takes_long(self) -> bool:
        """Whether the exchange is so large that its encoding should hold up no other file."""
        return self.exchange.body_bytes > _LARGE_BYTES

    def encode(self) -> bytes:
        """Return the record as a line, once: the exchange gives its bytes up for it (A43, A66)."""
        bodies = self.exchange.request, self.exchange.response
        for pieces in bodies:
            pieces[:] = [b"".join(pieces)]  # the pieces themselves are let go of before more is made of them
        line, self.outcome = self.encoder.encode(self.exchange)
        for pieces in bodies:
            pieces.clear()  # the line has their bytes
        self.exchange.parsed_request = None
        return line

    def wanted(self) -> bool:
        """Whether the call still belongs to its rollout (see :meth:`CallIndex.withdraw`)."""
        return not self.index.is_withdrawn(self.exchange.call_id)

    def committed(self, offset: int, length: int, part: int = 0) -> None:
        """Take note of where the durable line lies; ``part`` is the number of its segment, 0 for the rollout's file."""
        self.offset, self.length, self.part = offset, length, part

    def failed(self, error: Exception) -> None:
        """Take note of why there may be no durable line."""
        self.error = error
