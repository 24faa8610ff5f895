"""Run the busy agent in this process as often as told, eight at a time, once somebody says go."""

from __future__ import annotations

import asyncio
import os
import sys

from benchmarks.scale_agents import busy
from gym_ray.agents import RunContext
from gym_ray.agents.context import ServerUrls
from gym_ray.agents.delivery import build_client

_AT_ONCE = 8


async def run(url: str, rows: int, name: str) -> None:
    """Run the rollouts ``<name>-0`` to ``<name>-<rows - 1>`` against one model server."""
    urls, left = ServerUrls({"policy_model": url}, {}), iter(range(rows))
    async with build_client() as http:

        async def lane() -> None:
            for number in left:
                await busy({}, RunContext(f"{name}-{number}", http, os.environ["GYM_RAY_BENCH_TOKEN"], urls))

        await busy({}, RunContext(f"{name}-warm", http, os.environ["GYM_RAY_BENCH_TOKEN"], urls))
        print("READY", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        await asyncio.gather(*(lane() for _ in range(_AT_ONCE)))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
