"""Serve an app from a thread, for tests whose own code is not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from gym_ray.model_server.serving import AppServer

__all__ = ["served"]


@contextmanager
def served(app: ASGIApp, *, start_timeout_s: float = 20.0) -> Iterator[str]:
    """Serve ``app`` on loopback for the block; gives its root URL.

    Raises:
        ServerStartError: It did not come up.
        TimeoutError: It did not come up in time.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="served app")
    thread.start()
    server = AppServer(app)
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(start_timeout_s)
        yield server.url
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(1.0), loop).result(start_timeout_s)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(start_timeout_s)
        loop.close()
