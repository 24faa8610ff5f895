"""Run an ASGI application on a socket of our own, inside whatever event loop the host has.

uvicorn ends a failed start with ``SystemExit``. In a background task that stops the loop's thread and leaves a process
that is alive and answers nothing; so a start either gives a listening port or raises, and no signal handler is ever
installed. The socket is bound here, before uvicorn sees it: a port that is taken is an error with the port in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import socket
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gym_ray.errors import ServerStartError

__all__ = ["AppServer", "tune_collector"]

_BACKLOG = 2048
_COLLECT_EVERY_OBJECTS = 20_000
_LAST_PORT = 65535
_TICK_S = 0.1
"""uvicorn counts on this pace for its date header."""

_KEEP_ALIVE_S = 75
"""Longer than the idle time of common HTTP clients, so that it is the client that gives up an idle connection."""

_FORCE_S = 5.0
"""What a stop may take beyond its grace time before the server's task is cancelled."""


def tune_collector() -> None:
    """Keep the garbage collector out of the way of a process that does nothing but serve; call when all is built.

    What exists by then lives as long as the process. A call makes hundreds of objects and hardly any circle, so the
    default of one look every 700 objects finds nothing several times a call, and makes parsing a large body cost more
    than in proportion to its values.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY_OBJECTS, 20, 20)


class AppServer:
    """One application on one port; owns the socket and the serving task.

    Args:
        app: The ASGI application; its lifespan is run.
        host: Address to bind.
        port: Port to bind; 0 takes a free one. A port that a stopped server just left can be bound again at once.
    """

    def __init__(self, app: ASGIApp, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self._wanted_port = port
        self._lifespan = _LifespanWatch(app)
        self._server = _Server(
            uvicorn.Config(
                self._lifespan,
                lifespan="auto",
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
            )
        )
        self._port: int | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The bound port.

        Raises:
            ServerStartError: The server has not been started.
        """
        if self._port is None:
            raise ServerStartError("the server has no port: it has not been started")
        return self._port

    @property
    def url(self) -> str:
        """Root URL, without a trailing slash."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether requests are answered now; readable from any thread."""
        return self._task is not None and not self._task.done() and self._server.started

    async def start(self) -> int:
        """Bind and serve; return the port once requests are answered.

        Raises:
            ServerStartError: The port is taken, the address is not ours, or the application did not start.
        """
        if self._task is not None:
            raise ServerStartError(f"the server on {self.host}:{self._wanted_port} was started before")
        listener = _bind(self.host, self._wanted_port)
        self._port = listener.getsockname()[1]
        self._task = asyncio.create_task(self._serve(listener), name=f"serve:{self._port}")
        up = asyncio.create_task(self._server.up.wait())
        try:
            await asyncio.wait({up, self._task}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait({self._task})
            raise
        finally:
            up.cancel()
        if self._task.done():
            await self._task  # raises the cause
            raise ServerStartError(f"the server on {self.host}:{self._port} ended before it answered")
        return self._port

    async def wait(self) -> None:
        """Return when the server has stopped.

        Raises:
            ServerStartError: It ended by itself, with the cause.
        """
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self, grace_s: float = 10.0) -> None:
        """Stop accepting, let requests under way finish for ``grace_s`` seconds, then cancel them; idempotent.

        Returns once the port is free and no request's task is left.
        """
        if self._task is None:
            return
        self._server.config.timeout_graceful_shutdown = math.ceil(grace_s)
        self._server.leave()
        done, _ = await asyncio.wait({self._task}, timeout=math.ceil(grace_s) + _FORCE_S)
        if not done:
            self._task.cancel()
            await asyncio.wait({self._task})
        requests = list(self._server.server_state.tasks)
        for request in requests:
            request.cancel()
        if requests:
            await asyncio.wait(requests, timeout=_FORCE_S)

    async def _serve(self, listener: socket.socket) -> None:
        where = f"{self.host}:{self._port}"
        try:
            await self._server.serve(sockets=[listener])
        except SystemExit as exc:
            cause = self._lifespan.failure or f"exit code {exc.code}"
            raise ServerStartError(f"the server on {where} did not start: {cause}") from None
        except Exception as exc:  # whatever ends the server becomes one typed error for its host
            raise ServerStartError(f"the server on {where} failed: {type(exc).__name__}: {exc}") from exc
        finally:
            for bound in getattr(self._server, "servers", ()):  # left open when the server did not end in order
                bound.close()
            listener.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        self.should_exit = True
        self._leaving.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.up.set()

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), _TICK_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield  # signals belong to the host process


class _LifespanWatch:
    """Passes everything through and keeps the reason of a failed lifespan start, which uvicorn only logs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.failure = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def watched(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                lines = str(message.get("message", "")).strip().splitlines()
                self.failure = self.failure or (lines[-1] if lines else "")
            await send(message)

        await self._app(scope, receive, watched)


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= _LAST_PORT:
        raise ServerStartError(f"cannot listen on {host}:{port}: a port is 0 to {_LAST_PORT}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)  # sets SO_REUSEADDR
    except OSError as exc:
        reason = exc.strerror or str(exc)
        remedy = "; choose another port or stop what holds it" if port else ""
        raise ServerStartError(f"cannot listen on {host}:{port}: {reason}{remedy}") from exc
