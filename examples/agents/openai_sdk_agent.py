"""An agent of your own with the OpenAI SDK: it asks the question and hands the response back to be scored."""

from typing import Any

from openai import AsyncOpenAI

from gym_ray.agents import RunContext


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    params = row["responses_create_params"]
    async with AsyncOpenAI(base_url=ctx.base_url("policy_model"), api_key=ctx.api_key, max_retries=0) as client:
        response = await client.responses.create(model="policy", **params)
    return {"response": response}
