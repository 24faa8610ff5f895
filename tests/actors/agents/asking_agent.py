"""An agent that asks the model once, in the words of its row."""

from __future__ import annotations

from typing import Any

from gym_ray.agents import RunContext


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    reply = await ctx.http.post(
        f"{ctx.base_url('policy_model')}/responses",
        json=row["responses_create_params"],
        headers={"authorization": f"Bearer {ctx.api_key}"},
    )
    reply.raise_for_status()
    return {"response": reply.json()}
