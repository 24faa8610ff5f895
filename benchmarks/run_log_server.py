"""A model server that gives many captured answers at the same moment, and says how long its loop stood still."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import uvicorn

from benchmarks.capture_cost_server import OneAnswerEngine
from benchmarks.stalls import Stalls
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.model_server.app import build_app
from gym_ray.model_server.engine import EngineAnswer, EngineRequest
from gym_ray.model_server.serving import tune_collector


class Gate(OneAnswerEngine):
    """Holds every answer until ``expected`` requests are there, then gives all of them at once."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self._expected, self._arrived, self._open = expected, 0, asyncio.Event()

    async def answer(self, request: EngineRequest) -> EngineAnswer:
        """Wait for the others."""
        self._arrived += 1
        if self._arrived == self._expected:
            self._open.set()
        await self._open.wait()
        return await super().answer(request)

    async def models(self) -> EngineAnswer:
        """Answer at once."""
        return await super().models()

    async def _chunks(self) -> AsyncIterator[bytes]:
        yield self._body


async def serve(root: Path, expected: int) -> dict[str, float]:
    """Serve until stdin closes; return the stalls of an idle loop and of the loop under load."""
    writer = CaptureWriter(root, server_name="bench")
    app = build_app(Gate(expected), server_name="bench", capture=writer)
    writer.start()
    tune_collector()
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    config = uvicorn.Config(app, lifespan="off", ws="none", access_log=False, log_level="warning")
    server = uvicorn.Server(config)
    served = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:  # noqa: ASYNC110 - uvicorn has nothing to wait for
        await asyncio.sleep(0.01)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}") as client:
        await client.get("/v1/models")  # what is loaded late is loaded now
    async with Stalls() as idle:
        await asyncio.sleep(2.0)
    print("PORT", listening.getsockname()[1], flush=True)
    async with Stalls() as loaded:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.should_exit = True
    await served
    recorded = writer.counts.recorded
    writer.close()
    return {"idle_ms": idle.longest_ms, "loaded_ms": loaded.longest_ms, "recorded": recorded}


if __name__ == "__main__":
    print("FOUND", json.dumps(asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))), flush=True)
