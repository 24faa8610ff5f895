from __future__ import annotations

import asyncio
import itertools
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gym_ray.agents import AgentRunner, RunContext, ServerUrls
from gym_ray.agents.callable_agent import CallableAgent
from gym_ray.agents.callable_loading import load_callable
from gym_ray.agents.delivery import build_client
from gym_ray.errors import AgentError, SettingsError
from gym_ray.evidence.run_result import RunResult
from gym_ray.settings import (
    CallableAgentOptions,
    HttpAgentOptions,
    ModelServerRef,
    ResourcesServerRef,
    RunSettings,
    ServerOptions,
    ServerSettings,
    SimpleAgentOptions,
    TokenIdCaptureConfig,
)
from gym_ray.testing.agent_servers import (
    ScriptedModel,
    ScriptedResources,
    in_process_client,
    message_item,
    responses_answer,
)

ROW = {"responses_create_params": {"input": "hello"}, "uuid": "u-1", "_ng_rollout_id": "x"}
URLS = ServerUrls({"policy_model": "http://model"}, {"desk": "http://desk"})
SIMPLE = SimpleAgentOptions(
    model_server=ModelServerRef(name="policy_model"), resources_server=ResourcesServerRef(name="desk")
)

AGENT_FILE = """
import asyncio, sys, threading, time
import httpx

async def echo(row, ctx):
    return {"response": {"object": "response", "output": []}, "reward": 0.5, "id": ctx.rollout_id, "key": ctx.api_key}

def in_thread(row, ctx):
    return threading.current_thread().name

async def leaves(row, ctx):
    sys.exit(3)

async def interrupts(row, ctx):
    raise KeyboardInterrupt("from the agent")

async def leaves_like_a_generator(row, ctx):
    raise GeneratorExit

class Unreadable(Exception):
    def __str__(self):
        raise ValueError("no text")

async def raises_unreadable(row, ctx):
    raise Unreadable

async def raises_token(row, ctx):
    raise ValueError("401 for " + ctx.api_key)

async def raises(row, ctx):
    raise ValueError("no\\nluck")

async def cancels_itself(row, ctx):
    raise asyncio.CancelledError

async def hangs(row, ctx):
    await asyncio.Event().wait()

async def ignores_cancelling(row, ctx):
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if ctx.rollout_id in STOPPED:
                raise
            STOPPED.add(ctx.rollout_id)

STOPPED = set()

async def calls_model(row, ctx):
    answer = await ctx.http.post(ctx.base_url("policy_model") + "/responses", json={"input": "q"})
    answer.raise_for_status()
    return answer.json()

async def uses_tool(row, ctx):
    return await ctx.resources.call_tool("look", {"q": 1})

async def returns_set(row, ctx):
    return {"response": {"output": {1, 2}}}

async def returns_number(row, ctx):
    return 3

async def bad_reward(row, ctx):
    return {"reward": float("nan")}

async def only_reward(row, ctx):
    return {"reward": 0.25}

async def nothing(row, ctx):
    return {}

async def spoils_its_row(row, ctx):
    row["uuid"] = "mine"
    row["responses_create_params"].clear()
    return "text"

RELEASE = threading.Event()

def waits_in_thread(row, ctx):
    RELEASE.wait(30)
    return "late"

NOT_A_FUNCTION = 3
"""


@pytest.fixture
def agent_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_agent.py"
    path.write_text(AGENT_FILE)
    return path


def settings(**agents: ServerOptions) -> RunSettings:
    kinds = {SimpleAgentOptions: "simple_agent", HttpAgentOptions: "http_agent", CallableAgentOptions: "callable_agent"}
    servers = {
        name: ServerSettings(name, "responses_api_agents", kinds.get(type(options), "other"), options)
        for name, options in agents.items()
    }
    return RunSettings(servers=servers)


async def run_one(
    options: ServerOptions,
    apps: dict[str, Any] | None = None,
    *,
    row: bytes | None = None,
    agent: str = "agent",
    timeout_s: float | None = 30.0,
    token: str | None = None,
) -> RunResult:
    async with in_process_client(apps or {}) as http:
        runner = AgentRunner(
            settings(agent=options), URLS, run_token=token, http=http, connect_patience_s=0.0, cancel_grace_s=0.05
        )
        try:
            return await runner.run(json.dumps(ROW).encode() if row is None else row, "0-1", agent, timeout_s)
        finally:
            await runner.aclose()


def reply_of(result: RunResult) -> dict[str, Any]:
    assert result.failure is None, result.failure
    assert result.reply is not None
    reply: dict[str, Any] = json.loads(result.reply)
    return reply


async def test_simple_agent_seeds_talks_verifies_and_closes() -> None:
    arrivals: list[Any] = []
    model = ScriptedModel([responses_answer(message_item("hi"))], arrivals=arrivals)
    desk = ScriptedResources(verify=lambda body: {"reward": 1, "seen": body}, arrivals=arrivals)
    result = await run_one(SIMPLE, {"http://model": model, "http://desk": desk}, token="run-token")
    reply = reply_of(result)
    assert [a.path for a in arrivals] == [
        "/ng-rollout/0-1/seed_session",
        "/ng-rollout/0-1/v1/responses",
        "/ng-rollout/0-1/verify",
        "/ng-rollout/0-1/close_session",
    ]
    downstream = {key: value for key, value in ROW.items() if key != "_ng_rollout_id"}
    assert arrivals[0].json == downstream
    assert reply["seen"] == {**downstream, "response": responses_answer(message_item("hi"), usage=None)}
    assert reply["reward"] == 1
    assert [a.cookies for a in arrivals] == [{}, {}, {"sid": "s0"}, {"sid": "s0"}]
    assert arrivals[1].headers["authorization"] == "Bearer run-token"
    assert "authorization" not in arrivals[2].headers
    assert result.latency_ms > 0


async def test_an_attempt_keeps_to_the_servers_that_it_was_given(agent_file: Path) -> None:
    old = ScriptedModel([responses_answer(message_item("old"))])
    new = ScriptedModel([responses_answer(message_item("new"))])
    options = CallableAgentOptions(callable=f"{agent_file}:calls_model")
    async with in_process_client({"http://model": old, "http://moved": new}) as http:
        runner = AgentRunner(settings(agent=options), URLS, run_token=None, http=http, connect_patience_s=0.0)
        moved = await runner.run(
            json.dumps(ROW).encode(), "0-1", "agent", 30.0, ServerUrls({"policy_model": "http://moved"}, {})
        )
        stayed = await runner.run(
            json.dumps(ROW).encode(), "0-2", "agent", 30.0, ServerUrls({"other": "http://moved"}, {})
        )
        await runner.aclose()
    assert "new" in json.dumps(reply_of(moved))
    assert "old" in json.dumps(reply_of(stayed)), "a server that is not named is where it was"


@pytest.mark.parametrize("takes_part", [True, False])
async def test_the_calls_of_an_agent_that_takes_part_are_for_training(takes_part: bool) -> None:
    arrivals: list[Any] = []
    model = ScriptedModel([responses_answer(message_item("hi"))], arrivals=arrivals)
    block = TokenIdCaptureConfig(enabled=True, dir=Path("/tokens"))
    agent = SIMPLE.model_copy(update={"token_id_capture": takes_part})
    run = settings(agent=agent).model_copy(update={"token_id_capture": block})
    async with in_process_client({"http://model": model, "http://desk": ScriptedResources()}) as http:
        runner = AgentRunner(run, URLS, run_token=None, http=http, connect_patience_s=0.0)
        result = await runner.run(json.dumps(ROW).encode(), "0-1", "agent", 30.0)
        await runner.aclose()
    assert result.failure is None
    segment = "/training-token-capture" if takes_part else ""
    assert [arrival.path for arrival in arrivals] == [f"/ng-rollout/0-1{segment}/v1/responses"]


@pytest.mark.parametrize(
    ("status", "failure_class"),
    [(400, "agent_run_error"), (401, "agent_run_error"), (500, "agent_run_error"), (501, "agent_run_error")]
    + [(status, "engine_unavailable") for status in (429, 502, 503, 504)],
)
async def test_model_status_gives_its_class(status: int, failure_class: str) -> None:
    model = ScriptedModel([JSONResponse({"error": "x" * 3000}, status)])
    failure = (await run_one(SIMPLE, {"http://model": model, "http://desk": ScriptedResources()})).failure
    assert failure is not None
    assert (failure.failure_class, failure.http_status) == (failure_class, status)
    assert len(model.arrivals) == 1, "a delivered call is never sent again"
    assert failure.response_body is not None
    assert len(failure.response_body) == 2001
    assert failure.response_body.endswith("…")
    assert f"policy_model: POST /v1/responses answered {status}" in failure.message


@pytest.mark.parametrize(
    "answer",
    [
        Response(b"not json"),
        JSONResponse([1]),
        JSONResponse({"object": "response"}),
        JSONResponse({"output": ["text"]}),
        JSONResponse({"output": [], "status": "failed", "error": {"message": "boom"}}),
        JSONResponse({"output": [{"type": "function_call", "name": "look", "arguments": "{}"}]}),
    ],
)
async def test_an_answer_that_is_no_response_is_a_run_error(answer: Response) -> None:
    failure = (
        await run_one(SIMPLE, {"http://model": ScriptedModel([answer]), "http://desk": ScriptedResources()})
    ).failure
    assert failure is not None
    assert failure.failure_class == "agent_run_error"
    assert "policy_model" in failure.message


async def test_unreachable_model_is_engine_unavailable_and_resources_are_named() -> None:
    failure = (await run_one(SIMPLE, {"http://desk": ScriptedResources()})).failure
    assert failure is not None
    assert (failure.failure_class, failure.http_status) == ("engine_unavailable", None)
    failure = (await run_one(SIMPLE, {"http://model": ScriptedModel([])})).failure
    assert failure is not None
    assert failure.failure_class == "agent_run_error"
    assert "resources server desk: POST /seed_session" in failure.message


@pytest.mark.parametrize("reply", [JSONResponse({"detail": "expected_answer"}, 422), JSONResponse([])])
async def test_a_verifier_that_refuses_fails_the_attempt(reply: Response) -> None:
    model, desk = ScriptedModel([responses_answer(message_item("hi"))]), ScriptedResources(verify=lambda body: reply)
    failure = (await run_one(SIMPLE, {"http://model": model, "http://desk": desk})).failure
    assert failure is not None
    assert failure.failure_class == "agent_run_error"
    assert "/verify" in failure.message


@pytest.mark.parametrize(("reward", "ok"), [(None, True), (0.5, True), ("1", False), (True, False)])
async def test_only_numbers_and_null_are_rewards(reward: Any, ok: bool) -> None:
    model = ScriptedModel([responses_answer(message_item("hi"))])
    desk = ScriptedResources(verify=lambda body: {"reward": reward})
    result = await run_one(SIMPLE, {"http://model": model, "http://desk": desk})
    assert (result.failure is None) is ok
    if ok:
        assert reply_of(result)["reward"] == reward


async def test_a_reply_without_reward_is_unmeasured() -> None:
    model, desk = ScriptedModel([responses_answer(message_item("hi"))]), ScriptedResources(verify=lambda body: {})
    assert reply_of(await run_one(SIMPLE, {"http://model": model, "http://desk": desk})) == {"reward": None}


async def test_skipped_verification_says_so() -> None:
    model, desk = ScriptedModel([responses_answer(message_item("hi"))]), ScriptedResources()
    options = SIMPLE.model_copy(update={"skip_verification": True})
    reply = reply_of(await run_one(options, {"http://model": model, "http://desk": desk}))
    assert (reply["reward"], reply["verification_skipped"], reply["uuid"]) == (None, True, "u-1")
    assert not any(arrival.path.endswith("/verify") for arrival in desk.arrivals)


def tool_call(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c1", "name": name, "arguments": arguments}


@pytest.mark.parametrize(
    ("call", "expected", "path"),
    [
        (tool_call("look", "{oops"), "Invalid tool call arguments", None),
        (tool_call("look", None), "Invalid tool call arguments", None),
        (tool_call("verify", "{}"), "Unknown tool: verify", None),
        (tool_call("..", "{}"), "Unknown tool: ..", None),
        (tool_call("look", "{}"), "tool text", "/ng-rollout/0-1/look"),
        (tool_call("a/../verify", "{}"), "tool text", "/ng-rollout/0-1/a/../verify"),
    ],
)
async def test_tool_calls(call: dict[str, Any], expected: str, path: str | None) -> None:
    model = ScriptedModel([responses_answer(call), responses_answer(message_item("done"))])
    desk = ScriptedResources([(500, "tool text", {})])
    reply = reply_of(await run_one(SIMPLE, {"http://model": model, "http://desk": desk}))
    output = reply["response"]["output"][1]
    assert (output["type"], output["call_id"]) == ("function_call_output", "c1")
    assert expected in output["output"]
    tool_paths = [a.path for a in desk.arrivals if a.path.rsplit("/", 1)[1] not in ("seed_session", "close_session")]
    assert tool_paths[:-1] == ([] if path is None else [path])
    assert model.arrivals[1].json["input"][-1] == output


@pytest.mark.parametrize("params", [None, 3, {}, {"input": 3}])
async def test_a_row_without_usable_params_is_a_named_failure(params: Any) -> None:
    row = json.dumps({"responses_create_params": params}).encode()
    failure = (
        await run_one(SIMPLE, {"http://model": ScriptedModel([]), "http://desk": ScriptedResources()}, row=row)
    ).failure
    assert failure is not None
    assert "responses_create_params" in failure.message


async def test_the_session_is_closed_after_a_failure_too() -> None:
    desk = ScriptedResources()
    await run_one(SIMPLE, {"http://model": ScriptedModel([]), "http://desk": desk})
    assert desk.arrivals[-1].path.endswith("/close_session")


async def test_rollouts_keep_their_sessions_apart() -> None:
    desk = ScriptedResources()
    model = ScriptedModel([responses_answer(message_item("hi"))] * 4)
    async with in_process_client({"http://model": model, "http://desk": desk}) as http:
        runner = AgentRunner(settings(agent=SIMPLE), URLS, run_token=None, http=http)
        row = json.dumps(ROW).encode()
        await asyncio.gather(*(runner.run(row, f"{i}-0", "agent", 30.0) for i in range(4)))
        await runner.aclose()
    verified = {a.path: a.cookies["sid"] for a in desk.arrivals if a.path.endswith("/verify")}
    assert len(verified) == len(set(verified.values())) == 4
    assert all(a.cookies == {} for a in desk.arrivals if a.path.endswith("/seed_session"))


async def test_timeout_cancels_the_attempt() -> None:
    model = ScriptedModel([], hang=asyncio.Event())
    result = await run_one(SIMPLE, {"http://model": model, "http://desk": ScriptedResources()}, timeout_s=0.05)
    assert result.failure is not None
    assert (result.failure.failure_class, result.failure.error_type) == ("agent_timeout", "AgentTimeoutError")
    assert "0.05 s" in result.failure.message


async def test_cancelling_the_caller_cancels_the_agent() -> None:
    model = ScriptedModel([], hang=asyncio.Event())
    async with in_process_client({"http://model": model, "http://desk": ScriptedResources()}) as http:
        runner = AgentRunner(settings(agent=SIMPLE), URLS, run_token=None, http=http)
        task = asyncio.create_task(runner.run(json.dumps(ROW).encode(), "0-1", "agent", None))
        async with asyncio.timeout(10):
            await model.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await runner.aclose()
    assert {t for t in asyncio.all_tasks() if t.get_name().startswith("agent ")} == set()


async def test_unknown_agent_and_broken_row_are_failures() -> None:
    failure = (await run_one(SIMPLE, agent="other")).failure
    assert failure is not None
    assert "no agent is named 'other'; known: agent" in failure.message
    failure = (await run_one(SIMPLE, row=b"[]")).failure
    assert failure is not None
    assert "not a JSON object" in failure.message


def from_file(path: Path, function: str, *, verified: bool = False) -> CallableAgentOptions:
    resources = ResourcesServerRef(name="desk") if verified else None
    return CallableAgentOptions(callable=f"{path}:{function}", resources_server=resources)


async def test_callable_reply_is_kept(agent_file: Path) -> None:
    reply = reply_of(await run_one(from_file(agent_file, "echo")))
    assert reply["id"] == "0-1"
    assert reply["reward"] == 0.5
    assert reply["key"] == "unused"
    assert reply["responses_create_params"] == ROW["responses_create_params"]


async def test_synchronous_callable_runs_in_its_thread_and_text_becomes_a_response(agent_file: Path) -> None:
    reply = reply_of(await run_one(from_file(agent_file, "in_thread")))
    (item,) = reply["response"]["output"]
    assert item["content"][0]["text"] == "agent 0-1"
    assert reply["reward"] is None


async def test_callable_with_a_resources_server_is_verified(agent_file: Path) -> None:
    desk = ScriptedResources([(200, "sunny", {})], verify=lambda body: {"reward": 0.75, "text": body["response"]})
    reply = reply_of(await run_one(from_file(agent_file, "uses_tool", verified=True), {"http://desk": desk}))
    assert reply["reward"] == 0.75
    assert reply["text"]["output"][0]["content"][0]["text"] == "sunny"
    assert [a.path.rsplit("/", 1)[1] for a in desk.arrivals] == ["seed_session", "look", "verify", "close_session"]
    assert desk.arrivals[1].cookies == {"sid": "s0"}


async def test_a_function_cannot_change_the_row_that_is_verified(agent_file: Path) -> None:
    desk = ScriptedResources()
    reply = reply_of(await run_one(from_file(agent_file, "spoils_its_row", verified=True), {"http://desk": desk}))
    assert reply["uuid"] == "u-1"
    assert reply["responses_create_params"] == ROW["responses_create_params"]


async def test_threads_that_outlive_their_time_are_bounded_and_named(agent_file: Path) -> None:
    function = load_callable(f"{agent_file}:waits_in_thread")
    agent = CallableAgent("slow", function, max_threads=1)
    async with in_process_client({}) as http:
        ctx = RunContext("0-0", http, "unused", URLS)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(agent.run({}, ctx), 0.02)
        with pytest.raises(AgentError, match="slow: 1 runs of this function are under way or never ended"):
            await agent.run({}, ctx)
        function.__globals__["RELEASE"].set()
        (thread,) = agent._running_threads
        await asyncio.to_thread(thread.join, 10)
        await asyncio.sleep(0)  # the thread's last word is a callback on this loop
        assert (await agent.run({}, ctx))["response"]["output"][0]["content"][0]["text"] == "late"


async def test_own_reward_is_not_verified_again(agent_file: Path) -> None:
    desk = ScriptedResources()
    reply = reply_of(await run_one(from_file(agent_file, "only_reward", verified=True), {"http://desk": desk}))
    assert reply["reward"] == 0.25
    assert not any(a.path.endswith("/verify") for a in desk.arrivals)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("leaves", "3"),
        ("interrupts", "from the agent"),
        ("leaves_like_a_generator", "GeneratorExit"),
        ("raises_unreadable", "looking at it raised ValueError"),
        ("raises", "no luck"),
        ("cancels_itself", "cancelled itself"),
        ("returns_set", "reply.response.output is a set"),
        ("returns_number", "returned a int"),
        ("bad_reward", "reward is nan"),
    ],
)
async def test_whatever_foreign_code_does_is_a_named_failure(agent_file: Path, function: str, message: str) -> None:
    failure = (await run_one(from_file(agent_file, function))).failure
    assert failure is not None
    assert failure.failure_class == "agent_run_error"
    assert message in failure.message


async def test_nothing_to_verify_is_a_failure_not_a_zero(agent_file: Path) -> None:
    result = await run_one(from_file(agent_file, "nothing", verified=True), {"http://desk": ScriptedResources()})
    assert result.failure is not None
    assert "nothing to verify" in result.failure.message
    assert reply_of(await run_one(from_file(agent_file, "nothing")))["reward"] is None


@pytest.mark.parametrize(("status", "failure_class"), [(503, "engine_unavailable"), (400, "agent_run_error")])
async def test_http_errors_inside_a_callable_are_classed(agent_file: Path, status: int, failure_class: str) -> None:
    model = ScriptedModel([JSONResponse({"why": "x"}, status)])
    failure = (await run_one(from_file(agent_file, "calls_model"), {"http://model": model})).failure
    assert failure is not None
    assert (failure.failure_class, failure.http_status) == (failure_class, status)
    assert failure.response_body == '{"why":"x"}'
    assert model.arrivals[0].path == "/ng-rollout/0-1/v1/responses"


async def test_agent_that_ignores_cancelling_does_not_hold_its_caller(agent_file: Path) -> None:
    failure = (await run_one(from_file(agent_file, "ignores_cancelling"), timeout_s=0.05)).failure
    assert failure is not None
    assert failure.failure_class == "agent_timeout"
    assert "left behind" in failure.message


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("{}:absent", "has no 'absent'"),
        ("{}:NOT_A_FUNCTION", "not a function"),
        ("{}.absent.py:run", "no such file"),
        ("no_such_module_here:run", "cannot import no_such_module_here"),
    ],
)
async def test_a_function_that_cannot_be_loaded_is_a_settings_error(
    agent_file: Path, target: str, problem: str
) -> None:
    options = CallableAgentOptions(callable=target.format(agent_file))
    with pytest.raises(SettingsError, match=r"agent\.responses_api_agents\.callable_agent\.callable") as error:
        AgentRunner(settings(agent=options), URLS, run_token=None)
    assert problem in str(error.value)


async def test_a_server_that_does_not_run_is_a_settings_error() -> None:
    with pytest.raises(SettingsError, match=r"model_server: no server named 'policy_model' runs; running: none"):
        AgentRunner(settings(agent=SIMPLE), ServerUrls({}, {"desk": "http://desk"}), run_token=None)


class HttpAgentServer:
    """An agent server; ``reply`` may raise."""

    def __init__(self, reply: Response) -> None:
        self.reply, self.requests = reply, list[tuple[str, bytes, dict[str, str]]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append((scope["path"], body, headers))
        await self.reply(scope, receive, send)


HTTP = HttpAgentOptions(base_url="http://agent/base/")


async def test_http_agent_posts_the_row_once_with_its_id() -> None:
    server = HttpAgentServer(JSONResponse({"reward": 1.0}))
    row = b'{"responses_create_params": {"input": "x"}, "big": 123456789012345678901234567890}'
    assert reply_of(await run_one(HTTP, {"http://agent": server}, row=row)) == {"reward": 1.0}
    ((path, body, headers),) = server.requests
    assert path == "/base/run"
    assert json.loads(body) == json.loads(row)
    assert headers["idempotency-key"] == "0-1"
    assert "cookie" not in headers
    assert "x-gym-ray-run-token" not in headers


async def test_http_agent_gets_the_runs_token_in_a_header_and_nowhere_else() -> None:
    server = HttpAgentServer(JSONResponse({"reward": 1.0}))
    reply_of(await run_one(HTTP, {"http://agent": server}, token="run-token"))
    ((path, body, headers),) = server.requests
    assert headers.pop("x-gym-ray-run-token") == "run-token"
    assert "run-token" not in f"{path}{body!r}{headers}"


async def test_an_agent_that_repeats_the_token_does_not_get_it_stored(agent_file: Path) -> None:
    assert reply_of(await run_one(from_file(agent_file, "echo"), token="run-token"))["key"] == "**********"
    server = HttpAgentServer(JSONResponse({"detail": "x" * 1995 + "run-token"}, 500))
    failure = (await run_one(HTTP, {"http://agent": server}, token="run-token")).failure
    assert failure is not None
    assert failure.response_body is not None
    assert "run-t" not in failure.response_body, "nor the half of it that is left by a cut"
    failure = (await run_one(from_file(agent_file, "raises_token"), token="run-token")).failure
    assert failure is not None
    assert failure.message == "401 for **********"
    assert "run-token" not in repr(failure)


@pytest.mark.parametrize(
    ("reply", "failure_class"),
    [
        (JSONResponse({"detail": "x"}, 500), "agent_run_error"),
        (JSONResponse({"detail": "x"}, 503), "agent_request_failed"),
        (JSONResponse({"detail": "x"}, 429), "agent_request_failed"),
        (Response(b"no json"), "agent_run_error"),
        (JSONResponse([1]), "agent_run_error"),
    ],
)
async def test_http_agent_failures(reply: Response, failure_class: str) -> None:
    server = HttpAgentServer(reply)
    failure = (await run_one(HTTP, {"http://agent": server})).failure
    assert failure is not None
    assert (failure.failure_class, failure.http_status) == (failure_class, reply.status_code)
    assert len(server.requests) == 1


async def test_http_agent_without_status_may_never_have_run() -> None:
    failure = (await run_one(HTTP)).failure
    assert failure is not None
    assert (failure.failure_class, failure.error_type, failure.http_status) == (
        "agent_request_failed",
        "AgentError",
        None,
    )


async def test_a_dropped_connection_is_one_post_and_a_failure() -> None:
    """D33: the agent may be running the first one, so nothing is sent again under the same id."""
    ids: list[str] = []

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        ids.extend(line for line in head.splitlines() if line.startswith("idempotency-key:"))
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(drop, "127.0.0.1", 0)
    options = HttpAgentOptions(base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server, build_client() as http:
        runner = AgentRunner(settings(agent=options), URLS, run_token=None, http=http)
        failure = (await runner.run(json.dumps(ROW).encode(), "0-1", "agent", 30.0)).failure
        await runner.aclose()
    assert failure is not None
    assert (failure.failure_class, failure.http_status) == ("agent_request_failed", None)
    assert ids == ["idempotency-key: 0-1"]


async def test_a_clock_that_is_set_changes_no_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """D31: the wall's clock goes back an hour whenever somebody looks at it."""
    wall = itertools.count(2_000_000_000.0, -3600.0)
    monkeypatch.setattr(time, "time", lambda: next(wall))
    server = HttpAgentServer(JSONResponse({"reward": 1.0}))
    assert 0.0 <= (await run_one(HTTP, {"http://agent": server})).latency_ms < 60_000.0


class CutShort(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        class Body(httpx.AsyncByteStream):
            async def __aiter__(self) -> Any:
                yield b'{"rew'
                raise httpx.RemoteProtocolError("peer closed connection")

        return httpx.Response(200, stream=Body())


async def test_http_agent_whose_body_is_cut_short_ran() -> None:
    failure = (await run_one(HTTP, {"http://agent": CutShort()})).failure
    assert failure is not None
    assert (failure.failure_class, failure.http_status) == ("agent_run_error", 200)


async def test_a_resources_server_that_hangs_on_close_does_not_hold_a_cancelled_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gym_ray.agents.resources_session._CLOSE_TIMEOUT_S", 0.02)
    desk = ScriptedResources()

    async def hangs_on_close(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("/close_session"):
            await asyncio.Event().wait()
        await desk(scope, receive, send)

    model = ScriptedModel([responses_answer(message_item("hi"))])
    reply = reply_of(await run_one(SIMPLE, {"http://model": model, "http://desk": hangs_on_close}))
    assert reply["reward"] == 1.0
