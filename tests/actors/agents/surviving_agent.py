"""An agent that keeps a diary of its own, says which answers it was given, and fails where its row tells it to."""

from __future__ import annotations

import json
import os
from typing import Any

import httpx

from gym_ray.agents import RunContext
from gym_ray.evidence.observations import AgentInvocation, AgentObservationBundle, ModelCallRef, ModelServerRef

CALLS = 3
SERVER = ModelServerRef(type="responses_api_models", name="policy_model")


def note(path: str, **entry: Any) -> None:
    """Append one entry with one system call, so that a kill leaves it whole or leaves nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, (json.dumps(entry) + "\n").encode())
    finally:
        os.close(descriptor)


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    diary = row["diary"]
    note(diary, what="began", rollout=ctx.rollout_id, pid=os.getpid())
    given: list[str] = []
    for number in range(CALLS):
        # Each question holds the answer before it, as a tool's result would be held.
        question = f"{ctx.rollout_id} call {number} after {given[-1] if given else 'nothing'}"
        try:
            reply = await ctx.http.post(
                f"{ctx.base_url(SERVER.name)}/responses",
                json={"input": question, "stream": number % 2 == 1},
                headers={"authorization": f"Bearer {ctx.api_key}"},
            )
        except httpx.HTTPError as error:
            note(diary, what="broke", rollout=ctx.rollout_id, call=number, error=type(error).__name__)
            raise
        reply.raise_for_status()
        given.append(answer_id(reply.text))
        note(diary, what="answer", rollout=ctx.rollout_id, call=number, id=given[-1])
    note(diary, what="ended", rollout=ctx.rollout_id)
    if row.get("fails"):
        raise RuntimeError("this row always fails")
    calls = [ModelCallRef(model_ref=SERVER, response_id=name) for name in given]
    solver = AgentInvocation(invocation_id="solver", status="completed", model_calls=calls)
    return {
        "response": {"object": "response", "id": given[-1], "output": []},
        "reward": 1.0,
        "answers": given,
        "ng_agent_observations": AgentObservationBundle(source="surviving_agent", records=[solver]),
    }


def answer_id(text: str) -> str:
    body = json.loads(text.strip().rsplit("data: ", 1)[-1])
    return str(body.get("response", body)["id"])
