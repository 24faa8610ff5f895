from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Route

from gym_ray.agents.server_client import RunServers, ServerClient, current_run_token
from gym_ray.cli.head import build_head_app
from gym_ray.correlation import current_rollout_id
from gym_ray.errors import RolloutIdError, RunNotFoundError, SettingsError
from gym_ray.server_directory import Endpoint, ServerDirectory
from gym_ray.settings import HttpAgentOptions, RunSettings, ServerSettings
from gym_ray.testing.agent_servers import ScriptedModel, ScriptedResources, in_process_client, responses_answer
from gym_ray.testing.serving import served

CONFIG: dict[str, Any] = {
    "observability_enabled": True,
    "policy_model": {"responses_api_models": {"openai_model": {"host": "model", "port": 80}}},
    "desk": {"resources_servers": {"mcqa": {"host": "desk", "port": 80}}},
    "mine": {"responses_api_agents": {"http_agent": {"base_url": "http://agent/"}}},
    "portless": {"resources_servers": {"mcqa": {}}},
    "run_timeout_s": 3,
}
SERVERS = RunServers.from_config(CONFIG)


async def sent(
    name: str, path: str, body: Any = None, *, rollout_id: str | None = "3-1", servers: RunServers = SERVERS
) -> Any:
    """Post within a run and return what arrived."""
    arrivals: list[Any] = []
    model = ScriptedModel([responses_answer()], arrivals=arrivals)
    desk = ScriptedResources([(200, "", {})], verify=lambda _: {}, arrivals=arrivals)
    agent = ScriptedModel([responses_answer()], arrivals=arrivals, name="agent")
    apps: dict[str, Any] = {"http://model:80": model, "http://desk:80": desk, "http://agent": agent}

    async def within() -> None:
        current_rollout_id.set(rollout_id)
        current_run_token.set("run-token")
        async with in_process_client(apps) as http:
            await ServerClient(servers, http=http).post(name, path, json=body, cookies={"sid": "s1"})

    await asyncio.create_task(within())
    (arrival,) = arrivals
    return arrival


@pytest.mark.parametrize(
    ("name", "path", "arrives"),
    [
        ("policy_model", "/v1/responses", "/ng-rollout/3-1/v1/responses"),
        ("policy_model", "/v1/chat/completions?x=/y", "/ng-rollout/3-1/v1/chat/completions"),
        ("policy_model", "/v1/messages", "/ng-rollout/3-1/v1/messages"),
        ("policy_model", "/v1/models", "/v1/models"),
        ("policy_model", "/ng-rollout/9-9/v1/responses", "/ng-rollout/9-9/v1/responses"),
        ("policy_model", "/ng-rollout/9-9/training-token-capture/v1/responses", None),
        ("desk", "/verify", "/ng-rollout/3-1/verify"),
        ("desk", "/look", "/ng-rollout/3-1/look"),
        ("desk", "/ng-rollout/9-9/look", "/ng-rollout/9-9/look"),
        ("mine", "/v1/responses", "/v1/responses"),
    ],
)
async def test_a_call_within_a_run_gets_its_prefix(name: str, path: str, arrives: str | None) -> None:
    assert (await sent(name, path)).path == (arrives or path)


@pytest.mark.parametrize("name", ["policy_model", "desk"])
async def test_no_prefix_without_capture_or_without_an_id(name: str) -> None:
    off = RunServers.from_config({**CONFIG, "observability_enabled": False})
    path = "/v1/responses" if name == "policy_model" else "/look"
    assert (await sent(name, path, servers=off)).path == path
    assert (await sent(name, path, rollout_id=None)).path == path


async def test_verify_may_take_the_id_from_its_body() -> None:
    body = {"_ng_task_index": 4, "_ng_rollout_index": 2, "_ng_attempt_index": 1}
    assert (await sent("desk", "/verify", body, rollout_id=None)).path == "/ng-rollout/4-2-a1/verify"
    assert (await sent("desk", "/verify", body)).path == "/ng-rollout/3-1/verify"
    assert (await sent("desk", "/look", body, rollout_id=None)).path == "/look"
    with pytest.raises(RolloutIdError):
        await sent("desk", "/verify", {"_ng_rollout_id": "a/b"}, rollout_id=None)


async def test_the_token_goes_to_models_and_agents_only() -> None:
    model, desk, agent = [await sent(name, "/v1/responses") for name in ("policy_model", "desk", "mine")]
    assert model.headers["authorization"] == "Bearer run-token"
    assert agent.headers["x-gym-ray-run-token"] == "run-token"
    assert "run-token" not in str(desk.headers)
    assert "x-gym-ray-run-token" not in model.headers
    assert "authorization" not in agent.headers
    assert {arrival.headers["cookie"] for arrival in (model, desk, agent)} == {"sid=s1"}


def redirecting(target: str, status: int) -> Starlette:
    async def redirect(_: Any) -> RedirectResponse:
        return RedirectResponse(target, status)

    return Starlette(routes=[Route("/{path:path}", redirect, methods=["POST"])])


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("target", ["/v1/responses", "http://model/v1/responses", "/ng-rollout/3-1/v1/responses"])
async def test_a_redirect_is_followed_with_its_prefix(status: int, target: str) -> None:
    model = ScriptedModel([responses_answer()])

    async def server(scope: Any, receive: Any, send: Any) -> None:
        # A server that forgets the prefix when it redirects, as some do.
        app = redirecting(target, status) if scope["path"].endswith("/v1/responses/") else model
        await app(scope, receive, send)

    servers = RunServers({"responses_api_models": {"policy_model": ("http://model",)}}, observability_enabled=True)
    async with in_process_client({"http://model": server}) as http:
        client = ServerClient(servers, run_token="t", http=http)
        answer = await client.post("policy_model", "/ng-rollout/3-1/v1/responses/", json={"input": "x"})
    assert answer.json()["object"] == "response"
    (arrival,) = model.arrivals
    assert (arrival.path, arrival.json) == ("/ng-rollout/3-1/v1/responses", {"input": "x"})
    assert arrival.headers["authorization"] == "Bearer t"


@pytest.mark.parametrize(
    ("target", "status"),
    [("http://other/v1/responses", 307), ("/v1/responses", 303), ("https://model/v1/responses", 308)],
)
async def test_other_redirects_come_back_as_they_are(target: str, status: int) -> None:
    other = ScriptedModel([responses_answer()])
    apps: dict[str, Any] = {"http://model": redirecting(target, status), "http://other": other, "https://model": other}
    async with in_process_client(apps) as http:
        client = ServerClient(RunServers({"responses_api_models": {"m": ("http://model",)}}), run_token="t", http=http)
        assert (await client.post("m", "/v1/responses", json={})).status_code == status
    assert other.arrivals == []


async def test_redirects_in_a_circle_end() -> None:
    async with in_process_client({"http://model": redirecting("/v1/responses", 307)}) as http:
        client = ServerClient(RunServers({"responses_api_models": {"m": ("http://model",)}}), http=http)
        assert (await client.post("m", "/v1/responses", json={})).status_code == 307


async def test_all_calls_of_a_rollout_meet_one_replica() -> None:
    servers = RunServers({"responses_api_models": {"m": tuple(f"http://m{n}" for n in range(4))}})
    met = [servers.models(f"{n}-0")["m"] for n in range(64)]
    assert met == [servers.models(f"{n}-0")["m"] for n in range(64)]
    assert set(met) == {f"http://m{n}" for n in range(4)}


async def test_an_unknown_server_is_named() -> None:
    async with in_process_client({}) as http:
        with pytest.raises(KeyError, match="no server is named 'absent'; known: desk, mine, policy_model"):
            await ServerClient(SERVERS, http=http).post("absent", "/x")


@pytest.mark.parametrize(
    ("value", "on"), [(True, True), (1, True), ("yes", True), ("true", True), ("no", False), (0, False), (None, False)]
)
def test_the_switch_is_read_as_the_settings_read_it(value: Any, on: bool) -> None:
    assert RunServers.from_config({"observability_enabled": value}).observability_enabled is on
    if value is not None:
        loaded = RunSettings.model_validate({"observability_enabled": value, "model_call_capture_dir": "/c"})
        assert loaded.observability_enabled is on


def test_a_switch_that_is_none_is_an_error() -> None:
    with pytest.raises(SettingsError, match="observability_enabled: 'maybe' is not accepted"):
        RunServers.from_config({"observability_enabled": "maybe"})


@pytest.mark.parametrize("config", [None, [], "text"])
def test_what_is_no_mapping_turns_everything_off(config: object) -> None:
    assert RunServers.from_config(config) == RunServers()


def test_a_head_tells_where_the_servers_are() -> None:
    agent = ServerSettings("mine", "responses_api_agents", "http_agent", HttpAgentOptions(base_url="http://h:7000"))
    directory = ServerDirectory(
        {"m": [Endpoint("a", "http://h:1"), Endpoint("b", "http://h:2")]}, {"desk": [Endpoint("a", "http://h:3")]}
    )
    app = build_head_app(RunSettings(servers={"mine": agent}).to_yaml(), directory, {"observability_enabled": True})
    with served(app) as url:
        servers = RunServers.from_head(url + "/")
    assert servers == RunServers(
        {
            "responses_api_models": {"m": ("http://h:1", "http://h:2")},
            "resources_servers": {"desk": ("http://h:3",)},
            "responses_api_agents": {"mine": ("http://h:7000",)},
        },
        observability_enabled=True,
    )


def test_a_head_that_is_none_is_named() -> None:
    with served(redirecting("/", 307)) as url, pytest.raises(RunNotFoundError, match="not as a gym-ray head"):
        RunServers.from_head(url)
    with pytest.raises(RunNotFoundError, match=r"no servers at http://127\.0\.0\.1:9"):
        RunServers.from_head("http://127.0.0.1:9")
