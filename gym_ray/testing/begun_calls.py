"""Calls that a capture writer has begun, and a writer that is left behind as by a killed process."""

from __future__ import annotations

from gym_ray.model_call_capture.exchanges.exchange import Exchange
from gym_ray.model_call_capture.writer import CaptureWriter

__all__ = ["begun_call", "leave_as_killed"]


def begun_call(writer: CaptureWriter, rollout_id: str = "0-0") -> Exchange:
    """Begin a chat call that has its answer and is ready to be committed."""
    exchange = writer.begin(rollout_id, "chat")
    assert exchange is not None
    exchange.status, exchange.complete = 200, True
    exchange.request, exchange.response = [b"{}"], [b'{"choices":[{"index":0}]}']
    return exchange


def leave_as_killed(writer: CaptureWriter) -> None:
    """Leave a writer's log and registration behind as a killed process would: the lock is gone, nothing is ended."""
    running = writer._running  # noqa: SLF001 - a kill asks nobody
    assert running is not None
    log = running.backend.open_log
    log._closed = True  # noqa: SLF001
    log._calls.close(log._fd)  # noqa: SLF001
