"""End a request's work when its client has gone.

An ASGI server does not cancel an application whose client hung up; it only tells those who ask. Without this layer an
engine would go on generating for nobody. It stands outside the capture layer, so that the exchange is recorded as
cancelled, with the bytes so far (A51, B43).
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CancelOnDisconnect"]


class CancelOnDisconnect:
    """Pure ASGI layer: cancels the request's task when the client disconnects before the whole answer was sent.

    Args:
        app: The application inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application; return without an error when it was cancelled because its client had gone."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if not exchange.cancelled_by_us():
                raise
        finally:
            exchange.close()


class _Exchange:
    def __init__(self, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None  # an ASGI server calls applications from a task
        self._task = task
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self._answered = False
        self._cancelled = False

    async def receive(self) -> Message:
        if self._watcher is not None:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._client_left()
            await asyncio.sleep(0)  # where the cancellation arrives
        elif not message.get("more_body", False):
            self._watcher = asyncio.create_task(self._watch())
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._answered = True
        await self._send(message)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._client_left()

    def _client_left(self) -> None:
        self._gone.set()
        if not self._answered and not self._cancelled:
            self._cancelled = True
            self._task.cancel("the client disconnected")

    def cancelled_by_us(self) -> bool:
        """Take our cancellation back; False when somebody else cancelled as well, who must be obeyed."""
        if not self._cancelled:
            return False
        self._cancelled = False
        self._answered = True
        return self._task.uncancel() == 0

    def close(self) -> None:
        self._answered = True
        if self._watcher is not None:
            self._watcher.cancel()
        if self._cancelled:  # the application ended in spite of the cancellation
            self._cancelled = False
            self._task.uncancel()
