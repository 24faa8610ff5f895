"""The agent with a diary, behind a gate: its row names a file, and it begins its work once that file is there."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path
from typing import Any

from gym_ray.agents import RunContext

_SPEC = importlib.util.spec_from_file_location("surviving_agent", Path(__file__).with_name("surviving_agent.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
surviving = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(surviving)


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    surviving.note(row["diary"], what="came", rollout=ctx.rollout_id, pid=os.getpid(), url=ctx.base_url("policy_model"))
    gate = Path(row["gate"])
    while not gate.exists():  # noqa: ASYNC110, ASYNC240 - the test opens it
        await asyncio.sleep(0.05)
    reply: dict[str, Any] = await surviving.agent(row, ctx)
    return reply
