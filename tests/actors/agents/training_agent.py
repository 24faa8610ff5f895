"""An agent for loops: one model call and a reward, or a sleep that never ends where its row asks for one."""

from __future__ import annotations

import asyncio
from typing import Any

from gym_ray.agents import RunContext


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    text = row["responses_create_params"]["input"]
    if text.startswith("sleeps") and ("second" not in text or row["_ng_rollout_index"] == 1):
        await asyncio.Event().wait()
    reply = await ctx.http.post(
        f"{ctx.base_url('policy_model')}/responses",
        json={"input": [{"role": "user", "content": text}]},
        headers={"authorization": f"Bearer {ctx.api_key}"},
    )
    reply.raise_for_status()
    return {"response": reply.json(), "reward": 1.0}
