"""An agent that keeps a diary of its own: what it began, every answer that it was given whole, and how it ended."""

from __future__ import annotations

import json
import os
from typing import Any

import httpx

from gym_ray.agents import RunContext

CALLS = 4


def note(path: str, **entry: Any) -> None:
    line = (json.dumps(entry) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    diary = row["diary"]
    note(diary, what="began", rollout=ctx.rollout_id, pid=os.getpid())
    answers = []
    for number in range(CALLS):
        try:
            reply = await ctx.http.post(
                f"{ctx.base_url('policy_model')}/responses",
                json={"input": f"{ctx.rollout_id} call {number}", "stream": number % 2 == 1},
                headers={"authorization": f"Bearer {ctx.api_key}"},
            )
        except httpx.HTTPError as error:
            note(diary, what="broke", rollout=ctx.rollout_id, call=number, error=type(error).__name__)
            raise
        reply.raise_for_status()
        note(
            diary,
            what="answer",
            rollout=ctx.rollout_id,
            call=number,
            id=answer_id(reply.text),
            server=str(reply.url.copy_with(path="/")),
        )
        answers.append(answer_id(reply.text))
    return {"response": {"object": "response", "id": answers[-1], "output": []}, "reward": 1.0, "answers": answers}


def answer_id(text: str) -> str:
    last = text.strip().rsplit("data: ", 1)[-1]
    body = json.loads(last)
    return str(body.get("response", body)["id"])
