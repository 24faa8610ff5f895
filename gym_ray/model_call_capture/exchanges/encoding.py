"""Turns exchanges into lines, the large ones in an interpreter of their own.

Parsing and writing megabytes of JSON holds the interpreter's lock, and so the event loop, from any thread.
"""

from __future__ import annotations

import logging

from gym_ray.child_interpreter import ChildInterpreter
from gym_ray.errors import ChildInterpreterError
from gym_ray.model_call_capture.exchanges.exchange import Exchange, encode_with_record
from gym_ray.model_call_capture.exchanges.redaction import Redactor
from gym_ray.model_call_capture.exchanges.telemetry import CallOutcome, outcome_of

__all__ = ["RecordEncoder", "encode_with_outcome"]

_log = logging.getLogger(__name__)

_LARGE_BYTES = 1024**2


def encode_with_outcome(exchange: Exchange, redactor: Redactor | None) -> tuple[bytes, CallOutcome]:
    """Return the line of an exchange, and what is counted of it."""
    line, record = encode_with_record(exchange, redactor)
    return line, outcome_of(record)


class RecordEncoder:
    """Encodes exchanges on whatever thread asks; a child interpreter starts with the first large one.

    Args:
        redactor: Takes secrets out of every record; None writes what was seen.
    """

    def __init__(self, redactor: Redactor | None) -> None:
        self._redactor = redactor
        self._child = ChildInterpreter(encode_with_outcome)

    def encode(self, exchange: Exchange) -> tuple[bytes, CallOutcome]:
        """Return what :func:`encode_with_outcome` does; a lost child costs time and no record."""
        if exchange.body_bytes > _LARGE_BYTES:
            try:
                return self._child.call(exchange, self._redactor)
            except ChildInterpreterError as error:
                _log.warning("call %s is encoded in the server's own process: %s", exchange.call_id, error)
        return encode_with_outcome(exchange, self._redactor)

    def close(self) -> None:
        """End the child; idempotent. Exchanges encoded later are encoded here."""
        self._child.close()
