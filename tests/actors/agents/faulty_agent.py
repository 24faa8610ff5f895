"""An agent that asks the model once and then fails in the way that its row names, until it is healed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from gym_ray.agents import RunContext


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    with Path(row["diary"]).open("a") as diary:  # noqa: ASYNC230 - one line
        diary.write(json.dumps({"rollout": ctx.rollout_id}) + "\n")
    reply = await ctx.http.post(
        f"{ctx.base_url('policy_model')}/responses",
        json={"input": f"{ctx.rollout_id} asks"},
        headers={"authorization": f"Bearer {ctx.api_key}"},
    )
    reply.raise_for_status()
    answer = reply.json()
    result = {"response": answer, "reward": 1.0}
    return result if Path(row["healed"]).exists() else result | await fault(row["fault"], answer)  # noqa: ASYNC240


async def fault(name: str | None, answer: dict[str, Any]) -> dict[str, Any]:
    """Return what spoils a reply; most faults do not return."""
    match name:
        case "raises":
            raise ValueError("told to fail")
        case "exits":
            sys.exit(5)
        case "hangs":
            await asyncio.Event().wait()
        case "kills its worker":
            os.kill(os.getpid(), signal.SIGKILL)
        case "judge failed":
            return {"_ng_failure_class": "judge_failed", "_ng_failure_message": "the judge said nothing"}
        case "asks to be stored nowhere":
            return {"_ng_no_persist": True}
        case "invalid observations":
            return {"ng_agent_observations": {"source": "faulty_agent", "records": [{"kind": "no such kind"}]}}
        case "contradicting trajectory":
            return {"ng_trajectory": forged_trajectory(answer["id"])}
    return {}


def forged_trajectory(response_id: str) -> dict[str, Any]:
    """Return the trajectory of another rollout, in which the model gave another answer at another price."""
    metadata = {"model_ref": {"type": "responses_api_models", "name": "policy_model"}, "response_id": response_id}
    call = {
        "response": {"id": response_id, "output": [{"type": "message", "content": "forged"}]},
        "response_metadata": metadata,
        "token_stats": {"prompt_tokens": 999_999},
    }
    return {"schema_version": "1.0", "task_id": "another", "rollout_id": "another-0", "model_calls": [call]}
