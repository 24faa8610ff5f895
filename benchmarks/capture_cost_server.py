"""The server that ``capture_cost.py`` measures: one variant, one process, one port, printed when it is ready."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from queue import SimpleQueue

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gym_ray.dialects import CHAT
from gym_ray.model_call_capture.exchange import Exchange, encode_exchange
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.model_server.app import build_app
from gym_ray.model_server.engine import EngineAnswer, EngineRequest

RESPONSE_BYTES = 1024


def answer_body() -> bytes:
    """A chat answer of 1 KiB."""
    message = {"role": "assistant", "content": ""}
    usage = {"prompt_tokens": 1800, "completion_tokens": 180, "total_tokens": 1980}
    body = {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1790000000,
        "model": "bench",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    }
    message["content"] = "I see it. " * 200
    message["content"] = message["content"][: RESPONSE_BYTES - len(json.dumps(body)) + len(message["content"])]
    return json.dumps(body).encode()


class OneAnswerEngine:
    """An engine that costs nothing: what is measured is everything around it."""

    dialects = frozenset({CHAT})

    def __init__(self) -> None:
        self._body = answer_body()
        self._headers = [("content-type", "application/json"), ("content-length", str(len(self._body)))]

    async def start(self) -> None:
        """Nothing to start."""

    async def ready(self, timeout_s: float, on_wait: Callable[[str], None] | None = None) -> None:
        """Always ready."""

    async def answer(self, request: EngineRequest) -> EngineAnswer:  # noqa: ARG002 - one answer for all
        """Give the one answer."""
        return EngineAnswer(200, list(self._headers), self._chunks())

    async def models(self) -> EngineAnswer:
        """Give the one answer."""
        return EngineAnswer(200, list(self._headers), self._chunks())

    async def aclose(self) -> None:
        """Nothing to close."""

    async def _chunks(self) -> AsyncIterator[bytes]:
        yield self._body


class BareBatcher:
    """Holds an answer until its bytes are written and synced: batches per file, files in parallel, nothing else."""

    def __init__(self, app: ASGIApp, root: Path, threads: int = 16) -> None:
        self._app, self._root = app, root
        self._files: dict[str, int] = {}
        self._lanes: dict[str, list[tuple[bytes, asyncio.Future[None]]]] = {}
        self._lock = threading.Lock()
        self._ready: SimpleQueue[str] = SimpleQueue()
        self._done: deque[asyncio.Future[None]] = deque()
        self._scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        sample = Exchange("0" * 32, "bench-0", CHAT, "bench", 1790000000.123456)
        self._padding = b"x" * (len(encode_exchange(sample)) + 20)
        for _ in range(threads):
            threading.Thread(target=self._work, daemon=True).start()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; its body messages wait for the sync."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        parts: list[bytes] = []
        held: list[Message] = []

        async def keep_receive() -> Message:
            message = await receive()
            parts.append(message.get("body", b""))
            return message

        async def keep_send(message: Message) -> None:
            if message["type"] != "http.response.body":
                await send(message)
                return
            parts.append(message.get("body", b""))
            held.append(message)

        await self._app(scope, keep_receive, keep_send)
        await self._append(scope["path"].split("/")[2], b"".join([*parts, self._padding, b"\n"]))
        for message in held:
            await send(message)

    def _append(self, name: str, data: bytes) -> asyncio.Future[None]:
        self._loop = asyncio.get_running_loop()
        future = self._loop.create_future()
        with self._lock:
            lane = self._lanes.get(name)
            if lane is not None:
                lane.append((data, future))
                return future
            self._lanes[name] = [(data, future)]
        self._ready.put(name)
        return future

    def _work(self) -> None:
        while True:
            name = self._ready.get()
            with self._lock:
                items, self._lanes[name] = self._lanes[name], []
            fd = self._files.get(name)
            if fd is None:
                path = self._root / f"{name}.bare"
                fd = self._files[name] = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
            os.write(fd, b"".join(data for data, _ in items))
            os.fdatasync(fd)
            self._done.extend(future for _, future in items)
            if not self._scheduled:
                self._scheduled = True
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self._release)
            with self._lock:
                more = bool(self._lanes[name])
                if not more:
                    del self._lanes[name]
            if more:
                self._ready.put(name)

    def _release(self) -> None:
        self._scheduled = False
        while self._done:
            future = self._done.popleft()
            if not future.done():
                future.set_result(None)


def build(variant: str, root: Path) -> tuple[ASGIApp, CaptureWriter | None]:
    writer = CaptureWriter(root, server_name="bench") if variant == "on" else None
    app = build_app(OneAnswerEngine(), server_name="bench", capture=writer)
    return (BareBatcher(app, root) if variant == "bare" else app), writer


def main() -> None:
    variant, root = sys.argv[1], Path(sys.argv[2])
    app, writer = build(variant, root)
    if writer is not None:
        writer.start()
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    print("PORT", listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, lifespan="off", ws="none", access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[listening])
    if writer is not None:
        writer.close()


if __name__ == "__main__":
    main()
