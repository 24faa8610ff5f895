from __future__ import annotations

from typing import Any

from gym_ray.environments.base import Session
from gym_ray.environments.mcqa import McqaEnvironment
from gym_ray.testing.agent_servers import message_item


async def test_vector(case: dict[str, Any]) -> None:
    output = case["output"] if "output" in case else [message_item(case["text"])]
    row = {key: case[key] for key in ("options", "expected_answer", "template_metadata") if key in case}
    if case.get("grading_mode") is not None:
        row["grading_mode"] = case["grading_mode"]
    environment = McqaEnvironment(case.get("server_grading_mode"))
    body = {**row, "responses_create_params": {"input": []}, "response": {"id": "r", "output": output}}
    reply = await environment.verify(Session("s"), body)
    assert {key: reply[key] for key in case["result"]} == case["result"]
    assert len(reply) == 8
