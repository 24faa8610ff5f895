"""Agents of the benchmark ``scale``: one that only calls the model, and one that also works."""

from __future__ import annotations

import time
from typing import Any

from gym_ray.agents import RunContext

CALLS = 4
_WORK_S = 0.020


async def quick(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    """Call the model as often as the row says."""
    for number in range(row["calls"]):
        await _call(ctx, number)
    return {"response": {"object": "response", "output": []}, "reward": 1.0}


async def busy(_: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    """Use 20 ms of processor time, in four parts, each with a model call behind it."""
    for number in range(CALLS):
        until = time.thread_time() + _WORK_S / CALLS
        while time.thread_time() < until:
            sum(range(1000))
        await _call(ctx, number)
    return {"response": {"object": "response", "output": []}, "reward": 1.0}


async def trained(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    """Call the model once; what it sampled is what is trained on."""
    reply = await ctx.http.post(
        f"{ctx.base_url('policy_model')}/responses",
        json={"input": [{"role": "user", "content": row["responses_create_params"]["input"]}]},
        headers={"authorization": f"Bearer {ctx.api_key}"},
    )
    reply.raise_for_status()
    return {"response": reply.json(), "reward": 1.0}


async def _call(ctx: RunContext, number: int) -> None:
    reply = await ctx.http.post(
        f"{ctx.base_url('policy_model')}/responses",
        json={"input": f"{ctx.rollout_id} call {number}"},
        headers={"authorization": f"Bearer {ctx.api_key}"},
    )
    reply.raise_for_status()
