"""An agent that does to its worker what no agent should."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from gym_ray.agents import RunContext


async def leave() -> None:
    sys.exit(5)


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    if row["begun"] is not None:
        Path(row["begun"]).touch()  # noqa: ASYNC240 - one call, and nothing else runs here
    match row["responses_create_params"]["input"]:
        case "block":
            time.sleep(3600)  # noqa: ASYNC251 - the fault itself
        case "end the loop":
            await asyncio.gather(leave())
    return {"reward": 1.0}
