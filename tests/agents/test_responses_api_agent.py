"""Agent servers on real sockets: what their calls carry, what becomes of their failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from gym_ray.agents import (
    AgentRunner,
    ResponsesAPIAgentConfig,
    RunServers,
    ServerClient,
    ServerUrls,
    SimpleResponsesAPIAgent,
)
from gym_ray.agents.callable_loading import load_callable
from gym_ray.cli.head import build_head_app
from gym_ray.correlation import current_rollout_id
from gym_ray.environments import build_environment_app
from gym_ray.environments.mcqa import McqaEnvironment
from gym_ray.evidence.run_result import RunResult
from gym_ray.model_server.serving import AppServer
from gym_ray.server_directory import Endpoint, ServerDirectory
from gym_ray.settings import HttpAgentOptions, RunSettings, ServerSettings
from gym_ray.testing.captured_model import CapturedModel, captured_model
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.serving import served

TOKEN = "run-token-123456789"
EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = json.loads((EXAMPLES / "mcqa" / "questions.jsonl").read_bytes().splitlines()[0])
ROW = {**QUESTION, "_ng_task_index": 3, "_ng_rollout_index": 1, "_ng_attempt_index": 2}


class Agent(SimpleResponsesAPIAgent):
    """Does what the row's ``do`` names."""

    async def run(self, request: Request, body: dict[str, Any]) -> Any:
        return await getattr(self, body["do"])(request, body)

    async def responses(self, request: Request, body: dict[str, Any]) -> Any:
        path = self.url_path_for_request("/v1/responses", request)
        answer = await self.server_client.post("policy_model", path, json=body)
        return {**answer.raise_for_status().json(), "seen_id": current_rollout_id.get()}

    async def ask(self, path: str) -> Any:
        return (await self.server_client.post("policy_model", path, json={"input": "q"})).raise_for_status().json()

    async def ambient(self, request: Request, body: dict[str, Any]) -> Any:
        return {"response": await self.ask("/v1/responses"), "id": current_rollout_id.get()}

    async def prefixed(self, request: Request, body: dict[str, Any]) -> Any:
        return {"response": await self.ask(self.url_path_for_run("/v1/responses", body))}

    async def redirected(self, request: Request, body: dict[str, Any]) -> Any:
        return {"response": await self.ask(self.url_path_for_run("/v1/responses/", body))}

    async def self_call(self, request: Request, body: dict[str, Any]) -> Any:
        path = self.url_path_for_run("/v1/responses", body)
        answer = await self.server_client.post(self.config.name, path, json={"input": "q"})
        return {"response": answer.raise_for_status().json()}

    async def redirected_self_call(self, request: Request, body: dict[str, Any]) -> Any:
        path = self.url_path_for_run("/v1/responses/", body)
        answer = await self.server_client.post(self.config.name, path, json={"input": "q"})
        return {"response": answer.raise_for_status().json()}

    async def sdk(self, request: Request, body: dict[str, Any]) -> Any:
        url = self.resolve_model_base_url("policy_model", self.rollout_id_from_run(body))
        async with AsyncOpenAI(base_url=url, api_key=self.api_key, max_retries=0) as client:
            return {"response": (await client.responses.create(model="m", input="q")).model_dump(mode="json")}

    async def fails(self, request: Request, body: dict[str, Any]) -> Any:
        raise ValueError(f"no luck with {self.api_key}")

    async def leaves(self, request: Request, body: dict[str, Any]) -> Any:
        raise SystemExit(3)

    async def engine_down(self, request: Request, body: dict[str, Any]) -> Any:
        raise httpx.ConnectError("nothing listens")

    async def as_model(self, request: Request, body: dict[str, Any]) -> Any:
        return Reply(reward=0.5)

    async def as_http(self, request: Request, body: dict[str, Any]) -> Any:
        return Response(b'{"reward": 0.25}', media_type="application/json")

    async def waits(self, request: Request, body: dict[str, Any]) -> Any:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    began: asyncio.Event
    ended: asyncio.Event


class Reply(BaseModel):
    reward: float


@dataclass
class Running:
    agent: SimpleResponsesAPIAgent
    url: str
    model: CapturedModel
    runner: AgentRunner

    async def run(self, row: dict[str, Any]) -> RunResult:
        return await self.runner.run(json.dumps(row).encode(), "3-1-a2", "mine", 30.0)

    async def reply(self, row: dict[str, Any]) -> dict[str, Any]:
        result = await self.run(row)
        assert result.failure is None, result.failure
        assert result.reply is not None
        reply: dict[str, Any] = json.loads(result.reply)
        return reply


@asynccontextmanager
async def running(
    directory: Path, agent_type: Any = Agent, config: Any = None, *, observability: bool = True, text: str = "hi"
) -> AsyncIterator[Running]:
    """Serve a model with capture, a resources server, and the agent; run rows through the agent over HTTP."""
    async with AsyncExitStack() as held:
        model = await held.enter_async_context(captured_model(directory, FakeEngine(text), run_token=TOKEN))
        own_url: dict[str, tuple[str, ...]] = {}
        desk = AppServer(build_environment_app(McqaEnvironment(), "mcqa"))
        await desk.start()
        held.push_async_callback(desk.stop, 1.0)
        servers = RunServers(
            {
                "responses_api_models": {"policy_model": (model.url,)},
                "resources_servers": {"mcqa": (desk.url,)},
                "responses_api_agents": own_url,
            },
            observability_enabled=observability,
        )
        agent = agent_type(config or ResponsesAPIAgentConfig(name="mine"), ServerClient(servers))
        server = AppServer(agent.setup_webserver())
        await server.start()
        held.push_async_callback(server.stop, 1.0)
        own_url["mine"] = (server.url,)
        options = HttpAgentOptions(base_url=server.url)
        settings = RunSettings(servers={"mine": ServerSettings("mine", "responses_api_agents", "http_agent", options)})
        runner = AgentRunner(settings, ServerUrls({}, {}), run_token=TOKEN)
        held.push_async_callback(runner.aclose)
        yield Running(agent, server.url, model, runner)


async def test_the_example_is_captured_and_scored(tmp_path: Path) -> None:
    path = EXAMPLES / "agents" / "http_agent_server.py"
    config = load_callable(f"{path}:QuestionAgentConfig")(name="mine")
    answer = f"\\boxed{{{ROW['expected_answer']}}}"
    async with running(tmp_path, load_callable(f"{path}:QuestionAgent"), config, text=answer) as server:
        reply = await server.reply(ROW)
        (record,) = server.model.records("3-1-a2")
        assert server.model.rollout_ids() == ["3-1-a2"]
    assert reply["reward"] == 1.0
    assert reply["extracted_answer"] == ROW["expected_answer"]
    assert (record["dialect"], record["status_code"], record["error_category"]) == ("responses", 200, None)
    assert record["request"]["input"] == ROW["responses_create_params"]["input"]


@pytest.mark.parametrize("do", ["ambient", "prefixed", "redirected", "self_call", "redirected_self_call", "sdk"])
async def test_calls_are_captured_under_the_rollout(tmp_path: Path, do: str) -> None:
    async with running(tmp_path) as server:
        reply = await server.reply({**ROW, "do": do})
        assert reply["response"]["object"] == "response"
        assert server.model.rollout_ids() == ["3-1-a2"]
        assert [record["status_code"] for record in server.model.records("3-1-a2")] == [200]
    if do == "ambient":
        assert reply["id"] == "3-1-a2"
    if "self_call" in do:
        assert reply["response"]["seen_id"] == "3-1-a2"


async def test_without_capture_calls_carry_no_prefix(tmp_path: Path) -> None:
    async with running(tmp_path, observability=False) as server:
        for do in ("ambient", "prefixed", "self_call"):
            assert (await server.reply({**ROW, "do": do}))["response"]["object"] == "response"
        assert server.model.rollout_ids() == []


async def test_the_token_holds_for_its_request_only(tmp_path: Path) -> None:
    async with running(tmp_path) as server, httpx.AsyncClient(trust_env=False) as http:
        await server.reply({**ROW, "do": "ambient"})
        answer = await http.post(f"{server.url}/run", json={**ROW, "do": "ambient"})
        assert answer.status_code == 500
        assert "401" in answer.json()["error"]
        assert server.agent.server_client.run_token is None


@pytest.mark.parametrize("segment", ["", "/training-token-capture"])
async def test_the_self_call_routes(tmp_path: Path, segment: str) -> None:
    async with running(tmp_path) as server, httpx.AsyncClient(trust_env=False) as http:
        headers = {"x-gym-ray-run-token": TOKEN}
        path = f"/ng-rollout/7-0{segment}/v1/responses"
        answer = await http.post(f"{server.url}{path}", json={"input": "q"}, headers=headers)
        assert answer.json()["seen_id"] == "7-0"
        assert len(server.model.records("7-0")) == 1
        assert (await http.get(f"{server.url}/health")).json() == {"status": "ok", "agent": "mine"}
        assert (await http.post(f"{server.url}/ng-rollout/7-0/run", json={})).status_code == 404


@pytest.mark.parametrize(
    ("do", "failure_class", "status", "message"),
    [
        ("fails", "agent_run_error", 500, "ValueError: no luck with **********"),
        ("leaves", "agent_run_error", 500, "SystemExit: 3"),
        ("engine_down", "agent_request_failed", 502, "ConnectError: nothing listens"),
    ],
)
async def test_failures_are_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, do: str, failure_class: str, status: int, message: str
) -> None:
    async with running(tmp_path) as server:
        failure = (await server.run({**ROW, "do": do})).failure
        assert failure is not None
        assert (failure.failure_class, failure.http_status) == (failure_class, status)
        assert failure.response_body is not None
        assert json.loads(failure.response_body)["error"] == message
        assert (await server.reply({**ROW, "do": "as_model"}))["reward"] == 0.5, "it serves on"
    assert TOKEN not in caplog.text
    assert f"POST /run failed: {message}" in caplog.text


async def test_whole_http_answers_pass(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        assert await server.reply({**ROW, "do": "as_http"}) == {"reward": 0.25}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"[]", 422, "the body must be a JSON object"),
        (b"{", 422, "the body must be a JSON object"),
        (b'{"_ng_rollout_id": "a/b"}', 422, "'a/b' cannot be a rollout id"),
    ],
)
async def test_bodies_that_cannot_be_used(tmp_path: Path, body: bytes, status: int, message: str) -> None:
    async with running(tmp_path) as server, httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"{server.url}/run", content=body)
        assert answer.status_code == status
        assert message in answer.json()["error"]


async def test_a_run_under_way_is_not_begun_again_and_ends_with_its_client(tmp_path: Path) -> None:
    async with running(tmp_path) as server, httpx.AsyncClient(trust_env=False) as http:
        agent = server.agent
        assert isinstance(agent, Agent)
        agent.began, agent.ended = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(server.run({**ROW, "do": "waits"}))
        async with asyncio.timeout(20):
            await agent.began.wait()
        again = await http.post(
            f"{server.url}/run", json={**ROW, "do": "as_model"}, headers={"idempotency-key": "3-1-a2"}
        )
        assert again.status_code == 409
        first.cancel()
        async with asyncio.timeout(20):
            await agent.ended.wait()
        with pytest.raises(asyncio.CancelledError):
            await first
        async with asyncio.timeout(20):  # the server learns that its client left a moment later
            while (result := await server.run({**ROW, "do": "as_model"})).failure is not None:
                assert result.failure.http_status == 409
        assert result.reply == b'{"reward":0.5}'


def test_training_capture_puts_its_segment_into_urls() -> None:
    config = {
        "token_id_capture": {"enabled": True},
        "m": {"responses_api_models": {"x": {"host": "h", "port": 1}}},
    }
    client = ServerClient(RunServers.from_config(config))
    agent = Agent(ResponsesAPIAgentConfig(name="mine", token_id_capture=True), client)
    assert agent.url_path_for_run("/v1/responses", ROW) == "/ng-rollout/3-1-a2/training-token-capture/v1/responses"
    assert agent.base_url_for_run("http://h:1/", ROW) == "http://h:1/ng-rollout/3-1-a2/training-token-capture"
    with pytest.raises(KeyError):
        agent.resolve_model_base_url("absent")


@pytest.mark.parametrize(
    ("block", "flag", "own", "trained"),
    [
        ({"enabled": True}, True, False, True),
        ({"enabled": True}, False, True, True),
        ({"enabled": True}, False, False, False),
        ({"enabled": True, "all_agents": True}, False, False, True),
        ({"enabled": False, "all_agents": True}, True, True, False),
    ],
    ids=["the run's settings ask", "the agent asks", "nobody asks", "all take part", "switched off"],
)
def test_an_agent_learns_from_the_head_whether_its_calls_are_for_training(
    block: dict[str, Any], flag: bool, own: bool, trained: bool
) -> None:
    options = HttpAgentOptions(base_url="http://h:7000", token_id_capture=flag)
    mine = ServerSettings("mine", "responses_api_agents", "http_agent", options)
    settings = RunSettings(servers={"mine": mine}, token_id_capture={**block, "dir": "/tokens"})
    config = {
        "token_id_capture": block,
        "mine": {"responses_api_agents": {"http_agent": {"base_url": "http://h:7000", "token_id_capture": flag}}},
    }
    directory = ServerDirectory({"m": [Endpoint("a", "http://h:1")]}, {})
    with served(build_head_app(settings.to_yaml(redact=True), directory, {"observability_enabled": False})) as url:
        of_head = RunServers.from_head(url)
    for servers in (of_head, replace(RunServers.from_config(config), urls=of_head.urls)):
        agent = Agent(ResponsesAPIAgentConfig(name="mine", token_id_capture=own), ServerClient(servers))
        path = "/ng-rollout/3-1-a2/training-token-capture/v1/responses" if trained else "/v1/responses"
        assert agent.url_path_for_run("/v1/responses", ROW) == path
        assert agent.base_url_for_run("http://h:1", ROW).endswith("/training-token-capture") is trained
        segment = "/training-token-capture" if trained else ""
        assert agent.resolve_model_base_url("m", "0-0") == f"http://h:1/ng-rollout/0-0{segment}/v1"
