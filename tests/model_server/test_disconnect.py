"""A call ends with its client, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message, Receive, Scope, Send

from gym_ray.model_server.disconnect import CancelOnDisconnect

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Client:
    """The server's side of one connection."""

    def __init__(self, *parts: tuple[bytes, bool]) -> None:
        self.left = asyncio.Event()
        self.sent: list[Message] = []
        self._parts = list(parts)

    async def receive(self) -> Message:
        if self._parts:
            body, more = self._parts.pop(0)
            return {"type": "http.request", "body": body, "more_body": more}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def call(self, app: App) -> asyncio.Task[None]:
        async def run() -> None:
            await CancelOnDisconnect(app)({"type": "http"}, self.receive, self.send)

        return asyncio.create_task(run())


def end() -> Message:
    return {"type": "http.response.body", "body": b"", "more_body": False}


async def test_the_application_is_cancelled_when_the_client_leaves() -> None:
    reading, cancelled = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        reading.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    client = Client((b"{}", False))
    call = client.call(app)
    await reading.wait()
    client.left.set()
    await call  # ends without an error
    assert cancelled.is_set()
    assert not call.cancelled()


async def test_a_client_that_leaves_in_the_middle_of_its_body_cancels_too() -> None:
    seen: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            seen.append(await receive())

    client = Client((b"{", True))
    client.left.set()
    await client.call(app)
    assert [message["type"] for message in seen] == ["http.request"]


async def test_a_cancellation_from_outside_is_obeyed() -> None:
    reading = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        reading.set()
        await asyncio.Event().wait()

    client = Client((b"", False))
    call = client.call(app)
    await reading.wait()
    client.left.set()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_work_after_the_whole_answer_is_not_cancelled() -> None:
    finished = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(end())
        client.left.set()
        assert (await receive())["type"] == "http.disconnect"  # an application may still ask
        finished.set()

    client = Client((b"", False))
    await client.call(app)
    assert finished.is_set()
    assert client.sent == [end()]


async def test_an_application_may_finish_in_spite_of_the_cancellation() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        client.left.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await send(end())

    client = Client((b"", False))
    call = client.call(app)
    await call
    assert client.sent == [end()]
    assert call.cancelling() == 0


async def test_an_error_of_the_application_passes() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        await Client((b"", False)).call(app)


async def test_other_scopes_pass_untouched() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope, receive, send))

    seen: list[object] = []
    client = Client()
    await CancelOnDisconnect(app)({"type": "lifespan"}, client.receive, client.send)
    assert seen == [({"type": "lifespan"}, client.receive, client.send)]
