"""The example agents, run with the official SDKs against a model server on a real socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gym_ray.agents import AgentRunner, ServerUrls
from gym_ray.environments import build_environment_app
from gym_ray.environments.mcqa import McqaEnvironment
from gym_ray.model_server.serving import AppServer
from gym_ray.settings import CallableAgentOptions, ResourcesServerRef, RunSettings, ServerSettings
from gym_ray.testing.agent_servers import message_item, responses_answer

EXAMPLES = Path(__file__).parents[2] / "examples"
ROW = (EXAMPLES / "mcqa" / "questions.jsonl").read_bytes().splitlines()[0]
ANSWER = f"\\boxed{{{json.loads(ROW)['expected_answer']}}}"


class Model:
    """Answers Responses and Messages, and remembers path, key and body of each call."""

    def __init__(self, status: int = 200) -> None:
        self.status, self.calls = status, list[tuple[str, str, dict[str, Any]]]()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/ng-rollout/0-0/v1/responses", self.responses, methods=["POST"]),
                Route("/ng-rollout/0-0/v1/messages", self.messages, methods=["POST"]),
            ]
        )

    async def keep(self, request: Request) -> None:
        # Versions of the Anthropic SDK differ in the header that carries the key.
        key = request.headers.get("x-api-key") or request.headers["authorization"].removeprefix("Bearer ")
        self.calls.append((request.url.path, key, await request.json()))

    async def responses(self, request: Request) -> JSONResponse:
        await self.keep(request)
        fields = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "completed"}
        return JSONResponse(responses_answer(message_item(ANSWER), **fields), self.status)

    async def messages(self, request: Request) -> JSONResponse:
        await self.keep(request)
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": ANSWER}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        return JSONResponse(message, self.status)


async def run(example: str, model: Model) -> Any:
    options = CallableAgentOptions(
        callable=f"{EXAMPLES / 'agents' / example}:agent", resources_server=ResourcesServerRef(name="mcqa")
    )
    agent = ServerSettings("mine", "responses_api_agents", "callable_agent", options)
    environment = build_environment_app(McqaEnvironment(), "mcqa")
    servers = [AppServer(model.app()), AppServer(environment)]
    try:
        for server in servers:
            await server.start()
        urls = ServerUrls({"policy_model": servers[0].url}, {"mcqa": servers[1].url})
        runner = AgentRunner(RunSettings(servers={"mine": agent}), urls, run_token="token-1")
        try:
            return await runner.run(ROW, "0-0", "mine", 30.0)
        finally:
            await runner.aclose()
    finally:
        for server in servers:
            await server.stop(grace_s=1.0)


@pytest.mark.parametrize(
    ("example", "path"),
    [
        ("openai_sdk_agent.py", "/ng-rollout/0-0/v1/responses"),
        ("anthropic_sdk_agent.py", "/ng-rollout/0-0/v1/messages"),
    ],
)
async def test_example_agent_is_captured_and_scored(example: str, path: str) -> None:
    model = Model()
    result = await run(example, model)
    assert result.failure is None, result.failure
    reply = json.loads(result.reply)
    assert reply["reward"] == 1.0
    assert reply["extracted_answer"] == json.loads(ROW)["expected_answer"]
    ((called, key, _),) = model.calls
    assert (called, key) == (path, "token-1")


@pytest.mark.parametrize("example", ["openai_sdk_agent.py", "anthropic_sdk_agent.py"])
@pytest.mark.parametrize(("status", "failure_class"), [(503, "engine_unavailable"), (401, "agent_run_error")])
async def test_the_status_errors_of_the_sdks_are_classed(example: str, status: int, failure_class: str) -> None:
    model = Model(status)
    failure = (await run(example, model)).failure
    assert failure is not None
    assert (failure.failure_class, failure.http_status) == (failure_class, status)
    assert len(model.calls) == 1
