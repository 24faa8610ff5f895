"""A stream that is made from a complete answer: nothing is sent but comments until all of it is there (A132, A139)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gym_ray.dialects import RESPONSES
from gym_ray.dialects.replay import KEEP_ALIVE, failure_frames
from gym_ray.model_server.headers import SSE_HEADERS

__all__ = ["CallFailedError", "ReplayedStream"]

_BODY_BYTES = 64 * 1024
_HEADERS = [(name.encode("ascii"), value.encode("ascii")) for name, value in SSE_HEADERS]


class CallFailedError(Exception):
    """A call that has no answer, in every form in which a client may have to hear of it.

    Args:
        status: HTTP status.
        message: What happened, in words a client may see.
        response: The same as an HTTP answer, for clients that were sent nothing yet.
    """

    def __init__(self, status: int, message: str, response: Response) -> None:
        super().__init__(status, message, response)
        self.status, self.message, self.response = status, message, response

    def __str__(self) -> str:
        return self.message


class ReplayedStream(Response):
    """Replays the frames of an answer once all of them exist.

    A failure that is known in time keeps its HTTP status (A146), but on the Responses route, whose clients look for
    ``response.failed`` (A142). After ``keep_alive_s`` the status and a comment go out, and a later failure is an event.
    A client that leaves ends the work.

    Args:
        dialect: The client's dialect.
        work: Returns the frames, or raises :class:`CallFailedError`.
        keep_alive_s: Longest silence.
    """

    def __init__(self, dialect: str, work: Coroutine[Any, Any, Sequence[bytes]], keep_alive_s: float) -> None:
        self.status_code = 200
        self.background = None
        self._dialect = dialect
        self._work = work
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream."""
        task = asyncio.ensure_future(self._work)
        try:
            await asyncio.wait([task], timeout=self._keep_alive_s)
            failure = _failure_of(task)
            if failure is not None and self._dialect != RESPONSES:
                await failure.response(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            while not task.done():
                await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
                await asyncio.wait([task], timeout=self._keep_alive_s)
            frames = self._frames(task)
            for body in _bodies(frames[:-1]):
                await send({"type": "http.response.body", "body": body, "more_body": True})
            # The terminal event is a message of its own, so that capture holds back nothing else (A40).
            await send({"type": "http.response.body", "body": frames[-1], "more_body": False})
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    def _frames(self, task: asyncio.Future[Sequence[bytes]]) -> Sequence[bytes]:
        failure = _failure_of(task)
        if failure is None:
            return task.result()
        return failure_frames(self._dialect, status=failure.status, message=failure.message)


def _bodies(frames: Sequence[bytes]) -> Iterator[bytes]:
    """Yield small frames together and large ones alone, so that a slow client does not cost a second copy of all."""
    together: list[bytes] = []
    size = 0
    for frame in frames:
        if together and size + len(frame) > _BODY_BYTES:
            yield b"".join(together)
            together, size = [], 0
        together.append(frame)
        size += len(frame)
    if together:
        yield b"".join(together)


def _failure_of(task: asyncio.Future[Sequence[bytes]]) -> CallFailedError | None:
    error = task.exception() if task.done() else None
    return error if isinstance(error, CallFailedError) else None
