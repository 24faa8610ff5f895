"""An agent that talks with the model for three turns, and asks again when a call breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from gym_ray.agents import RunContext

TURNS = 3
MOST_BREAKS = 300


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    url = ctx.base_url("policy_model")
    turns: list[Any] = [{"role": "user", "content": row["responses_create_params"]["input"]}]
    said, broke, answer = [], [], dict[str, Any]()
    while len(said) < TURNS:
        try:
            reply = await ctx.http.post(
                f"{url}/responses", json={"input": turns}, headers={"authorization": f"Bearer {ctx.api_key}"}
            )
        except httpx.TransportError as error:
            broke.append(type(error).__name__)
            if len(broke) > MOST_BREAKS:
                raise
            await asyncio.sleep(0.1)  # the server is being started anew
            continue
        reply.raise_for_status()
        answer = reply.json()
        said.append(answer["output"][0]["content"][0]["text"])
        turns += [*answer["output"], {"role": "user", "content": f"and then {len(said)}?"}]
    return {"response": answer, "reward": 1.0, "said": said, "broke": broke, "url": url}
