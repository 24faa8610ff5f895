"""What every actor that serves HTTP has in common: start at once, report the cause of a failed start, stop gently."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp

from gym_ray.actors.health import Watched
from gym_ray.errors import GymRayError, ServerStartError
from gym_ray.model_server.serving import AppServer, tune_collector

__all__ = ["HttpHost"]


class HttpHost(Watched):
    """Base of the actors that serve an app on a fixed port.

    The server starts with the actor, so that a restarted actor serves again without being asked. A failed start is an
    error of :meth:`url`, never a deaf process.
    """

    def __init__(self, name: str, host: str, port: int) -> None:
        super().__init__()
        self._name, self._host, self._port = name, host, port
        self._server: AppServer | None = None
        self._up = asyncio.get_running_loop().create_task(self._begin(self._start()))

    async def _open(self) -> ASGIApp:
        """Build the app and start what it needs."""
        raise NotImplementedError  # pragma: no cover - every host overrides it

    async def _release(self) -> None:
        """Release what :meth:`_open` started; must be safe after a failed start."""

    async def _start(self) -> str:
        try:
            server = AppServer(await self._open(), self._host, self._port)
            self._server = server
            port = await server.start()
            tune_collector()
        except GymRayError as error:
            raise ServerStartError(f"{self._name}: {error}") from error
        return f"http://{self._host}:{port}"

    async def url(self) -> str:
        """Return the root URL once the server answers.

        Raises:
            ServerStartError: It did not come up; the message names the server and the cause.
        """
        return await asyncio.shield(self._up)

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop serving: requests under way may end within ``grace_s``; idempotent."""
        self._up.cancel()
        if self._server is not None:
            await self._server.stop(grace_s)
        await self._release()
