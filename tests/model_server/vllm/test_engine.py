"""What is laid under a vLLM server's requests, and which of its answers are replaced."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.errors import EngineError
from gym_ray.model_server.app import build_app
from gym_ray.model_server.engines import app_options, build_engine
from gym_ray.model_server.serving import AppServer
from gym_ray.settings import (
    AnthropicModelOptions,
    CompactingVllmModelOptions,
    ModelOptions,
    ServerSettings,
    VllmModelOptions,
)
from gym_ray.testing.fake_upstream import FakeUpstream, UpstreamRequest, recorded
from gym_ray.testing.script import ScriptedAnswer

PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
TOO_LONG = json.loads((Path(__file__).parents[2] / "recordings/vllm_0_32/chat_too_long.json").read_text())
USER = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"input": USER},
    CHAT: {"messages": USER},
    MESSAGES: {"max_tokens": 9, "messages": USER},
}


class Served:
    """A model server in front of a scripted vLLM server."""

    def __init__(self, fake: FakeUpstream, http: httpx.AsyncClient, engine: Any) -> None:
        self.fake, self.http, self.engine = fake, http, engine

    def sent(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.fake.requests[-1].body)
        return body


@asynccontextmanager
async def served(
    script: Callable[[UpstreamRequest], ScriptedAnswer] | None = None,
    kind: tuple[str, type[ModelOptions]] = ("vllm_model", VllmModelOptions),
    **options: Any,
) -> AsyncIterator[Served]:
    fake = FakeUpstream(script)
    upstream = AppServer(fake)
    await upstream.start()
    given = {"base_url": f"{upstream.url}/v1", "api_key": SecretStr("sk-1"), "model": "served", **options}
    if kind[0] == "anthropic_model":
        given = {f"anthropic_{key}": given.pop(key) for key in ("base_url", "api_key", "model")} | given
    settings = ServerSettings("policy_model", "responses_api_models", kind[0], kind[1].model_validate(given))
    engine = build_engine(settings, local_engine_url=None)
    await engine.start()
    app = build_app(engine, server_name="policy_model", capture=None, options=app_options(settings, engine))
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://model") as http:
            yield Served(fake, http, engine)
    finally:
        await engine.aclose()
        await upstream.stop(grace_s=5)


COMPACTING = ("vllm_model_with_compaction", CompactingVllmModelOptions)


async def test_a_request_that_no_setting_changes_goes_out_byte_for_byte() -> None:
    raw = b'{ "model": "served", "messages": [], "seed": 18446744073709551616 }'
    async with served(chat_template_kwargs={}, replace_developer_role_with_system=True) as link:
        await link.http.post("/v1/chat/completions", content=raw)
    assert link.fake.requests[-1].body == raw


async def test_settings_are_laid_under_the_request() -> None:
    settings = {"chat_template_kwargs": {"enable_thinking": False, "a": 1}, "extra_body": {"top_k": 5, "seed": 1}}
    body = {**BODIES[CHAT], "seed": 7, "chat_template_kwargs": {"a": 2}}
    async with served(**settings) as link:
        await link.http.post("/v1/chat/completions", json=body)
    sent = link.sent()
    assert (sent["top_k"], sent["seed"]) == (5, 7)
    assert sent["chat_template_kwargs"] == {"enable_thinking": False, "a": 2}


@pytest.mark.parametrize(("dialect", "key"), [(CHAT, "messages"), (RESPONSES, "input")])
async def test_developers_become_systems_where_a_template_wants_it(dialect: str, key: str) -> None:
    turns = [{"role": "developer", "content": "d"}, *USER]
    async with served(replace_developer_role_with_system=True) as link:
        await link.http.post(PATH_OF[dialect], json={key: turns})
    assert [turn["role"] for turn in link.sent()[key]] == ["system", "user"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("spoken", [[RESPONSES, CHAT, MESSAGES], [CHAT]], ids=["stock", "chat only"])
@pytest.mark.parametrize("dialect", [RESPONSES, CHAT, MESSAGES])
async def test_a_prompt_that_is_too_long_is_answered_with_an_empty_completion(
    dialect: str, spoken: list[str], stream: bool
) -> None:
    async with served(lambda request: recorded(TOO_LONG), dialects=spoken) as link:
        response = await link.http.post(PATH_OF[dialect], json={**BODIES[dialect], "stream": stream})
    assert response.status_code == 200
    answer = reassemble(dialect, response.content) if stream else response.json()
    assert answer is not None
    match dialect:
        case "chat":
            assert answer["choices"][0]["finish_reason"] == "length"
            assert not answer["choices"][0]["message"]["content"]
        case "responses":
            assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        case "messages":
            assert (answer["stop_reason"], answer["role"]) == ("max_tokens", "assistant")
    assert len(link.fake.requests) == 1


@pytest.mark.parametrize("dialect", [RESPONSES, CHAT, MESSAGES])
async def test_the_overflow_itself_passes_where_it_is_wanted(dialect: str) -> None:
    async with served(lambda request: recorded(TOO_LONG), propagate_context_overflow_errors=True) as link:
        response = await link.http.post(PATH_OF[dialect], json=BODIES[dialect])
    assert (response.status_code, response.text) == (400, TOO_LONG["body"])


async def test_another_400_passes_with_its_body() -> None:
    async with served(lambda request: ScriptedAnswer([b'{"error":{"message":"bad"}}'], 400)) as link:
        response = await link.http.post("/v1/chat/completions", json=BODIES[CHAT])
    assert (response.status_code, response.content) == (400, b'{"error":{"message":"bad"}}')


EMPTY = {"role": "assistant", "content": " "}


@pytest.mark.parametrize("dialect", [RESPONSES, CHAT, MESSAGES])
async def test_an_empty_assistant_turn_is_not_continued_where_that_is_forbidden(dialect: str) -> None:
    key = "input" if dialect == RESPONSES else "messages"
    async with served(sequential_reasoning_allowed=False) as link:
        refused = await link.http.post(PATH_OF[dialect], json={**BODIES[dialect], key: [*USER, EMPTY]})
        assert not link.fake.requests
        await link.http.post(PATH_OF[dialect], json={**BODIES[dialect], key: [*USER, {**EMPTY, "content": "so"}]})
        await link.http.post(PATH_OF[dialect], json=BODIES[dialect])
        assert len(link.fake.requests) == 2
    reasons = {CHAT: "content_filter", RESPONSES: "content_filter", MESSAGES: "refusal"}
    assert refused.status_code == 200
    assert reasons[dialect] in refused.text


async def test_the_compaction_adapter_tokenizes_what_it_would_send() -> None:
    tokens = ScriptedAnswer([b'{"count":2,"tokens":[4,5]}'])
    body = {"input": "hi", "instructions": "be brief", "required_prefix_token_ids": [1], "max_output_tokens": 5}
    async with served(lambda request: tokens, COMPACTING) as link:
        response = await link.http.post("/tokenize", json=body)
        invalid = await link.http.post("/tokenize", json={"input": "hi", "nope": 1})
    assert response.json() == {"tokens": [4, 5]}
    assert invalid.status_code == 422
    assert [request.path for request in link.fake.requests] == ["/tokenize"]
    sent = link.sent()
    assert (sent["model"], sent["required_prefix_token_ids"]) == ("served", [1])
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert "max_tokens" not in sent


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (ScriptedAnswer([b'{"error":{"message":"no such route"}}'], 404), 404, "no such route"),
        (ScriptedAnswer([b'{"tokens":["a"]}']), 502, "no list of token ids"),
        (ScriptedAnswer([b"nothing"]), 502, "no list of token ids"),
    ],
)
async def test_a_server_that_does_not_tokenize_is_named(answer: ScriptedAnswer, status: int, text: str) -> None:
    async with served(lambda request: answer, COMPACTING) as link:
        response = await link.http.post("/tokenize", json={"input": "hi"})
        with pytest.raises(EngineError):
            await link.engine.tokenize({"messages": []})
    assert response.status_code == status
    assert text in response.text


async def test_the_adapters_chat_route_is_the_servers_own() -> None:
    async with served(None, COMPACTING) as link:
        response = await link.http.post("/v1/chat/completions", json={**BODIES[CHAT], "anything": 1})
    assert response.status_code == 200
    assert link.sent()["anything"] == 1


async def test_an_anthropic_server_gets_its_key_version_and_a_bound() -> None:
    kind = ("anthropic_model", AnthropicModelOptions)
    async with served(None, kind, max_output_tokens=77) as link:
        await link.http.post("/v1/responses", json={"input": "hi"})
        counted = await link.http.post("/v1/messages/count_tokens", json={"messages": USER})
    converted, count = link.fake.requests
    assert converted.path == "/v1/messages"
    assert (converted.headers["x-api-key"], converted.headers["anthropic-version"]) == ("sk-1", "2023-06-01")
    assert (json.loads(converted.body)["max_tokens"], json.loads(converted.body)["model"]) == (77, "served")
    assert count.path == "/v1/messages/count_tokens"
    assert counted.status_code == 404  # what the scripted server says to it passes


@pytest.mark.parametrize("dialect", BODIES)
async def test_settings_laid_under_a_request_that_nests_too_deeply_are_a_refusal(dialect: str) -> None:
    deep = b'{"a":' * 900 + b"1" + b"}" * 900
    body = json.dumps(BODIES[dialect]).encode()[:-1] + b',"tools":[' + deep + b"]}"
    async with served(extra_body={"top_k": 1}) as link:
        response = await link.http.post(PATH_OF[dialect], content=body)
    assert response.status_code == 400
    assert "nested too deeply" in response.json()["error"]["message"]


async def test_a_local_answer_that_cannot_repeat_the_settings_is_a_refusal() -> None:
    deep = b'{"a":' * 900 + b"1" + b"}" * 900
    body = json.dumps({**BODIES[RESPONSES], "model": "served"}).encode()[:-1] + b',"metadata":' + deep + b"}"
    async with served(lambda request: recorded(TOO_LONG)) as link:
        response = await link.http.post(PATH_OF[RESPONSES], content=body)
    assert response.status_code == 400
    assert "nested too deeply" in response.json()["error"]["message"]
