"""A model server with capture on, on loopback, for tests of whatever calls models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_ray.model_call_capture import CaptureWriter
from gym_ray.model_server.app import AppOptions, build_app
from gym_ray.model_server.engine import Engine
from gym_ray.model_server.serving import AppServer
from gym_ray.storage.calls import FileCalls

__all__ = ["CapturedModel", "captured_model"]


@dataclass(frozen=True, slots=True)
class CapturedModel:
    """A running model server.

    Attributes:
        url: Root URL.
        directory: Capture directory.
    """

    url: str
    directory: Path

    def records(self, rollout_id: str) -> list[dict[str, Any]]:
        """Return the raw records of a rollout, as any other process would read them."""
        path = self.directory / f"{rollout_id}.capture.jsonl"
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def rollout_ids(self) -> list[str]:
        """Return the ids that something was captured under, sorted."""
        return sorted(path.name.removesuffix(".capture.jsonl") for path in self.directory.glob("*.capture.jsonl"))


@asynccontextmanager
async def captured_model(
    directory: Path,
    engine: Engine,
    *,
    name: str = "policy_model",
    run_token: str | None = None,
    options: AppOptions | None = None,
    calls: FileCalls | None = None,
) -> AsyncIterator[CapturedModel]:
    """Serve ``engine`` with capture into ``directory`` for the block.

    Args:
        directory: Capture directory.
        engine: The engine, started.
        name: Name of the server.
        run_token: What clients must send as their API key.
        options: How the server behaves.
        calls: How the capture writer calls the operating system.

    Raises:
        ServerStartError: The server did not come up.
    """
    writer = CaptureWriter(directory, server_name=name, run_token=run_token, calls=calls)
    await asyncio.to_thread(writer.start)
    server = AppServer(build_app(engine, server_name=name, capture=writer, run_token=run_token, options=options))
    try:
        await server.start()
        yield CapturedModel(server.url, directory)
    finally:
        await server.stop(grace_s=2.0)
        await asyncio.to_thread(writer.close)
