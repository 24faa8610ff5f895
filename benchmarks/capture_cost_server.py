"""The server that ``capture_cost.py`` measures: one variant, one process, one port, printed when it is ready."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gym_ray.dialects import CHAT
from gym_ray.model_call_capture.exchanges.exchange import Exchange, encode_exchange
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.model_server.app import build_app
from gym_ray.model_server.engine import EngineAnswer, EngineRequest
from gym_ray.model_server.serving import tune_collector
from gym_ray.storage.calls import FileCalls, SyncOutcome
from gym_ray.storage.local_calls import file_calls_for

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


class CountedCalls(FileCalls):
    """Counts the calls of the operating system; :func:`counted` mixes it with the calls that suit the directory."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.appends = self.data_syncs = self.directory_syncs = 0

    def lock_exclusive(self, fd: int, *, wait: bool) -> bool:
        """Count: every append to a file, whatever the number of its records, begins with the file's lock."""
        taken = super().lock_exclusive(fd, wait=wait)
        with self._lock:
            self.appends += taken
        return taken

    def sync_data(self, fd: int) -> None:
        """Count one."""
        with self._lock:
            self.data_syncs += 1
        super().sync_data(fd)

    def sync_all(self, fds: Sequence[int], tell: Callable[[list[SyncOutcome]], None]) -> None:
        """Count as many as there are; a single one goes through :meth:`sync_data`."""
        if len(fds) > 1:
            with self._lock:
                self.data_syncs += len(fds)
        super().sync_all(fds, tell)

    def sync(self, fd: int) -> None:
        """Count one; the only thing synced whole while calls are recorded is the directory of new files."""
        with self._lock:
            self.directory_syncs += 1
        super().sync(fd)


def counted(root: Path) -> CountedCalls:
    """Return the calls that a writer would use, counted."""
    suited = type(file_calls_for(root))
    bases = (CountedCalls,) if suited is FileCalls else (CountedCalls, suited)
    calls: CountedCalls = type("Counted", bases, {})()
    return calls


def build(variant: str, root: Path, calls: FileCalls | None = None) -> tuple[ASGIApp, CaptureWriter | None]:
    writer = CaptureWriter(root, server_name="bench", calls=calls) if variant == "on" else None
    app = build_app(OneAnswerEngine(), server_name="bench", capture=writer)
    return (BareBatcher(app, root) if variant == "bare" else app), writer


def main() -> None:
    variant, root = sys.argv[1], Path(sys.argv[2])
    calls = counted(root)
    app, writer = build(variant, root, calls)
    if writer is not None:
        writer.start()
        calls.clear()
    tune_collector()  # as the actor that hosts a model server does
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    print("PORT", listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, lifespan="off", ws="none", access_log=False, log_level="warning")
    signal.signal(signal.SIGTERM, lambda *_: None)  # it ends the server, and would end the process when that is done
    uvicorn.Server(config).run(sockets=[listening])
    if writer is not None:
        # Every answer has left, so every record was synced; what closing syncs is not the calls' own.
        counts = {"records": writer.counts.recorded, "appends": calls.appends}
        counts |= {"data_syncs": calls.data_syncs, "directory_syncs": calls.directory_syncs}
        writer.close()
        print("COUNTS", json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
