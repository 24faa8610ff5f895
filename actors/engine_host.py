"""Host the embedded engine: one llama.cpp process a node, shared by the model servers there."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from gym_ray.actors.health import Watched
from gym_ray.errors import GymRayError, ServerStartError
from gym_ray.model_server.llama_cpp.server import LlamaCppServer
from gym_ray.model_server.llama_cpp.weights import ensure_weights
from gym_ray.settings import LocalModelOptions

__all__ = ["EngineHost"]


class EngineHost(Watched):
    """Loads the weights and serves llama.cpp's HTTP API on loopback, on a port that survives a restart."""

    def __init__(self, options: LocalModelOptions, cache_dir: Path, host: str, port: int) -> None:
        super().__init__()
        self._options, self._cache_dir, self._host, self._port = options, cache_dir, host, port
        self._server: LlamaCppServer | None = None
        self._up = asyncio.get_running_loop().create_task(self._begin(asyncio.to_thread(self._start)))

    def _start(self) -> str:
        try:
            weights = ensure_weights(self._cache_dir, self._options.model_path)
            self._server = LlamaCppServer(
                weights,
                host=self._host,
                port=self._port,
                n_ctx=self._options.n_ctx,
                n_parallel=self._options.n_parallel,
                n_threads=self._options.n_threads or os.cpu_count() or 1,
            )
            return self._server.start()
        except GymRayError as error:
            raise ServerStartError(f"embedded engine: {error}") from error

    async def url(self) -> str:
        """Return the engine's root URL once the model is loaded.

        Raises:
            ServerStartError: It could not be; the message holds the cause.
        """
        return await asyncio.shield(self._up)

    async def close(self) -> None:
        """Stop the engine; idempotent."""
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)
