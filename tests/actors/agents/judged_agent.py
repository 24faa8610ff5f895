"""The agent with a diary, judged by an environment; it waits for servers that accept no connection, as clients do."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx

from gym_ray.agents import RunContext
from gym_ray.errors import AgentError

_SPEC = importlib.util.spec_from_file_location("surviving_agent", Path(__file__).with_name("surviving_agent.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
surviving = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(surviving)

PATIENCE_S = 30.0


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    diary, given = row["diary"], list[str]()
    surviving.note(diary, what="began", rollout=ctx.rollout_id, pid=os.getpid())
    try:
        session = ctx.open_session("mcqa")
        await session.seed(row)
        for number in range(surviving.CALLS):
            question = f"{ctx.rollout_id} call {number} after {given[-1] if given else 'nothing'}"
            reply = await asked(ctx, {"input": question, "stream": number % 2 == 1})
            given.append(surviving.answer_id(reply.text))
            surviving.note(diary, what="answer", rollout=ctx.rollout_id, call=number, id=given[-1])
        verdict = await session.verify(row, json.loads(reply.text))
    except (httpx.HTTPError, AgentError) as error:
        surviving.note(diary, what="broke", rollout=ctx.rollout_id, call=len(given), error=repr(error))
        raise
    surviving.note(diary, what="ended", rollout=ctx.rollout_id)
    calls = [surviving.ModelCallRef(model_ref=surviving.SERVER, response_id=name) for name in given]
    solver = surviving.AgentInvocation(invocation_id="solver", status="completed", model_calls=calls)
    observed = surviving.AgentObservationBundle(source="judged_agent", records=[solver])
    return {
        "response": {"object": "response", "id": given[-1], "output": []},
        "reward": verdict["reward"],
        "answers": given,
        "ng_agent_observations": observed,
    }


async def asked(ctx: RunContext, body: dict[str, Any]) -> httpx.Response:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            reply = await ctx.http.post(
                f"{ctx.base_url(surviving.SERVER.name)}/responses",
                json=body,
                headers={"authorization": f"Bearer {ctx.api_key}"},
            )
        except httpx.ConnectError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)
            continue
        reply.raise_for_status()
        return reply
