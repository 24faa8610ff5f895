"""An agent that its rows steer: what it waits for, whether it calls a model, its reward, and how much it says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gym_ray.agents import RunContext


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    if "begun" in row:  # one file for each run that began
        (Path(row["begun"]) / f"{row['_ng_task_index']}-{row['_ng_rollout_index']}").touch()
    while "gate" in row and not await asyncio.to_thread(Path(row["gate"]).exists):  # noqa: ASYNC110 - another opens it
        await asyncio.sleep(0.05)
    response: dict[str, Any] = {}
    if row.get("calls"):
        reply = await ctx.http.post(
            f"{ctx.base_url('policy_model')}/responses",
            json={"input": [{"role": "user", "content": row["responses_create_params"]["input"]}]},
            headers={"authorization": f"Bearer {ctx.api_key}"},
        )
        reply.raise_for_status()
        response = reply.json()
    return {"response": response, "reward": float(row.get("reward", 1.0)), "said": "x" * row.get("says", 0)}
