"""Settings become the engine they describe."""

from __future__ import annotations

import asyncio
import json

import pytest
from pydantic import SecretStr

from gym_ray.errors import EngineTimeoutError, EngineUnavailableError, SettingsError
from gym_ray.model_server.engine import EngineRequest
from gym_ray.model_server.engines import build_engine
from gym_ray.model_server.llama_cpp.engine import LlamaCppEngine
from gym_ray.model_server.serving import AppServer
from gym_ray.settings import LocalModelOptions, McqaOptions, OpenAIModelOptions, ServerSettings
from gym_ray.testing.fake_upstream import FakeUpstream
from gym_ray.testing.script import ScriptedAnswer


def openai_server(url: str, **options: object) -> ServerSettings:
    given = {"openai_base_url": url, "openai_api_key": SecretStr("sk-1"), "openai_model": "real-model", **options}
    return ServerSettings(
        "policy_model", "responses_api_models", "openai_model", OpenAIModelOptions.model_validate(given)
    )


async def test_openai_model_uses_its_url_key_and_model() -> None:
    fake = FakeUpstream()
    upstream = AppServer(fake)
    await upstream.start()
    engine = build_engine(openai_server(f"{upstream.url}/v1"), local_engine_url=None)
    assert engine.dialects == {"responses", "chat"}
    await engine.start()
    await engine.ready(20)
    answer = await engine.answer(EngineRequest("chat", {"model": "m"}, b'{"model":"m"}'))
    assert b"hello there" in b"".join([chunk async for chunk in answer.body])
    await answer.aclose()
    await engine.aclose()
    await upstream.stop()
    request = fake.requests[-1]
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer sk-1"
    assert json.loads(request.body) == {"model": "real-model"}


async def test_openai_model_uses_its_timeouts_and_names_its_key() -> None:
    hanging = ScriptedAnswer([b"{}"], start_gate=asyncio.Event())
    refused = ScriptedAnswer([b"{}"], 401)
    upstream = AppServer(FakeUpstream(lambda request: refused if request.method == "GET" else hanging))
    await upstream.start()
    engine = build_engine(openai_server(f"{upstream.url}/v1", request_timeout_s=0.05), local_engine_url=None)
    await engine.start()
    with pytest.raises(
        EngineUnavailableError, match=r"policy_model\.responses_api_models\.openai_model\.openai_api_key"
    ):
        await engine.ready(20)
    with pytest.raises(EngineTimeoutError, match=r"0\.05 s"):
        await engine.answer(EngineRequest("chat", {}, b"{}"))
    await engine.aclose()
    await upstream.stop()


def test_local_model_is_the_embedded_engine() -> None:
    server = ServerSettings("policy_model", "responses_api_models", "local_model", LocalModelOptions())
    engine = build_engine(server, local_engine_url="http://127.0.0.1:9")
    assert isinstance(engine, LlamaCppEngine)
    assert engine.dialects == {"responses", "chat", "messages"}


def test_local_model_without_a_running_engine_is_an_error() -> None:
    server = ServerSettings("policy_model", "responses_api_models", "local_model", LocalModelOptions())
    with pytest.raises(SettingsError, match=r"policy_model\.responses_api_models\.local_model: no llama\.cpp server"):
        build_engine(server, local_engine_url=None)


def test_a_server_without_an_engine_is_an_error() -> None:
    server = ServerSettings("mcqa", "resources_servers", "mcqa", McqaOptions())
    with pytest.raises(SettingsError, match=r"mcqa\.resources_servers\.mcqa: has no engine"):
        build_engine(server, local_engine_url=None)
