"""An agent of your own with the Anthropic SDK: the text that it returns becomes the response that is scored."""

from typing import Any

from anthropic import AsyncAnthropic

from gym_ray.agents import RunContext


async def agent(row: dict[str, Any], ctx: RunContext) -> str:
    items = row["responses_create_params"]["input"]
    system = "\n".join(item["content"] for item in items if item["role"] == "system")
    messages = [item for item in items if item["role"] != "system"]
    async with AsyncAnthropic(base_url=ctx.root_url("policy_model"), api_key=ctx.api_key, max_retries=0) as client:
        answer = await client.messages.create(model="policy", max_tokens=64, system=system, messages=messages)
    return "".join(block.text for block in answer.content if block.type == "text")
