"""Says in each log line of an attempt which attempt it belongs to, as fields of the line's record.

The names are bound around an attempt and follow its tasks and threads; a line logged outside of any has none. Records
are changed on their way to a handler, never when they are made: fields of a caller's own stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

__all__ = ["LogFormat", "bound", "name_attempts"]

LogFormat = Literal["text", "json"]
"""How processes of a run log: lines for people, or one JSON object a line."""

_BOUND: ContextVar[tuple[str, int] | None] = ContextVar("gym_ray_attempt", default=None)


@contextmanager
def bound(*, rollout_id: str, attempt: int) -> Iterator[None]:
    """Have every line that is logged in the block, and in tasks that it starts, name this attempt."""
    token = _BOUND.set((rollout_id, attempt))
    try:
        yield
    finally:
        _BOUND.reset(token)


class _AttemptFields(logging.Filter):
    """Gives records ``rollout_id`` and ``attempt``, which structured formatters write beside what they know."""

    def filter(self, record: logging.LogRecord) -> bool:
        attempt = _BOUND.get()
        if attempt is not None:
            for name, value in zip(("rollout_id", "attempt"), attempt, strict=True):
                if not hasattr(record, name):
                    setattr(record, name, value)
        return True


class _PlainFormatter(logging.Formatter):
    """Lines for people where nobody has chosen a format."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        found = [f"{name}={getattr(record, name)}" for name in ("rollout_id", "attempt") if hasattr(record, name)]
        return f"[{' '.join(found)}] {line}" if found else line


def name_attempts(logger: logging.Logger) -> None:
    """Have the handlers of a process's root logger name attempts; one without any gets one. Safe to repeat.

    Handlers keep their format. A handler that the logger gets later names nothing.
    """
    if not logger.handlers:
        plain = logging.StreamHandler()
        plain.setFormatter(_PlainFormatter())
        logger.addHandler(plain)
    for handler in logger.handlers:
        if not any(isinstance(one, _AttemptFields) for one in handler.filters):
            handler.addFilter(_AttemptFields())
