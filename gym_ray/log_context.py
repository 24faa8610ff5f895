"""Says in each log line of an attempt which attempt it belongs to, as text or as one JSON object a line.

The names are bound around an attempt and follow its tasks and threads; a line logged outside of any has none.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

__all__ = ["LogFormatter", "bound"]

_BOUND: ContextVar[tuple[str, int] | None] = ContextVar("gym_ray_attempt", default=None)


@contextmanager
def bound(*, rollout_id: str, attempt: int) -> Iterator[None]:
    """Have every line that is logged in the block, and in tasks that it starts, name this attempt."""
    token = _BOUND.set((rollout_id, attempt))
    try:
        yield
    finally:
        _BOUND.reset(token)


class LogFormatter(logging.Formatter):
    """Formats a record in the thread and task that logged it.

    Args:
        form: ``json`` for one object a line: time (UTC), level, logger, message, node, and where they are known
            rollout_id, attempt and error; ``text`` for people.
        node: Id of the node, "" where there are none.
    """

    def __init__(self, form: Literal["text", "json"], node: str = "") -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._form, self._node = form, node

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its line feed."""
        attempt = _BOUND.get()
        if self._form == "text":
            line = super().format(record)
            return line if attempt is None else f"[{attempt[0]} attempt {attempt[1]}] {line}"
        value: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "node": self._node,
        }
        if attempt is not None:
            value |= {"rollout_id": attempt[0], "attempt": attempt[1]}
        if record.exc_info:
            value["error"] = self.formatException(record.exc_info)
        return json.dumps(value)
