"""An agent that speaks the dialect that its row asks for, through the official SDK of it, streamed."""

from __future__ import annotations

from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from gym_ray.agents import RunContext


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    server, text = row["server"], f"{row['responses_create_params']['input']} {ctx.api_key}"
    said = await (_messages if row["speaks"] == "messages" else _responses)(ctx, server, text)
    return {"reward": 1.0, "words": len(said.split()), "server": server, "speaks": row["speaks"]}


async def _messages(ctx: RunContext, server: str, text: str) -> str:
    async with (
        AsyncAnthropic(base_url=ctx.root_url(server), api_key=ctx.api_key, max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=64, messages=[{"role": "user", "content": text}]) as stream,
    ):
        return await stream.get_final_text()


async def _responses(ctx: RunContext, server: str, text: str) -> str:
    async with (
        AsyncOpenAI(base_url=ctx.base_url(server), api_key=ctx.api_key, max_retries=0) as client,
        client.responses.stream(model="m", input=text) as stream,
    ):
        return (await stream.get_final_response()).output_text
