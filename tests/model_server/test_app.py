"""The application in front of a scripted engine, over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anthropic
import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.dialects import DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.errors import EngineError, EngineTimeoutError, EngineUnavailableError, UnsupportedRequestError
from gym_ray.model_server.app import AppOptions, build_app
from gym_ray.model_server.engine import EngineRequest
from gym_ray.model_server.serving import AppServer
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import SSE, ScriptedAnswer
from gym_ray.testing.waiting import until

PATHS = list(DIALECT_BY_PATH)
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "input": "hi", "max_tokens": 9}


@asynccontextmanager
async def serving(engine: FakeEngine, **options: object) -> AsyncIterator[httpx.AsyncClient]:
    server = AppServer(build_app(engine, server_name="policy_model", capture=None, **options))  # type: ignore[arg-type]
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=20) as client:
            yield client
    finally:
        await server.stop(grace_s=5)


def json_bytes() -> st.SearchStrategy[bytes]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
    return values.map(lambda value: json.dumps(value).encode())


def shown(response: httpx.Response) -> list[tuple[str, str]]:
    return [pair for pair in response.headers.multi_items() if pair[0] != "date"]


def message_of(response: httpx.Response) -> str:
    return str(response.json()["error"]["message"])


class TestSdks:
    @pytest.mark.parametrize("prefix", ["", "/ng-rollout/0-0"])
    async def test_openai(self, prefix: str) -> None:
        async with (
            serving(FakeEngine("one two three")) as http,
            openai.AsyncOpenAI(
                base_url=f"{http.base_url}{prefix}/v1".replace("//ng", "/ng").replace("//v1", "/v1"), api_key="k"
            ) as client,
        ):
            whole = await client.responses.create(model="m", input="hi")
            assert whole.output_text == "one two three"
            async with client.responses.stream(model="m", input="hi") as stream:
                kinds = [event.type async for event in stream]
                assert (await stream.get_final_response()).output_text == "one two three"
            assert kinds.count("response.output_text.delta") == 3
            messages = [{"role": "user", "content": "hi"}]
            chat = await client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
            assert chat.choices[0].message.content == "one two three"
            async with client.chat.completions.stream(model="m", messages=messages) as chunks:  # type: ignore[arg-type]
                final = await chunks.get_final_completion()
            assert final.choices[0].message.content == "one two three"
            assert [model.id async for model in client.models.list()] == ["fake-model"]

    @pytest.mark.parametrize("prefix", ["", "/ng-rollout/0-0"])
    async def test_anthropic(self, prefix: str) -> None:
        async with (
            serving(FakeEngine("one two three")) as http,
            anthropic.AsyncAnthropic(base_url=f"{http.base_url}".rstrip("/") + prefix, api_key="k") as client,
        ):
            messages = [{"role": "user", "content": "hi"}]
            whole = await client.messages.create(model="m", max_tokens=9, messages=messages)  # type: ignore[arg-type]
            assert whole.content[0].text == "one two three"  # type: ignore[union-attr]
            async with client.messages.stream(model="m", max_tokens=9, messages=messages) as stream:  # type: ignore[arg-type]
                assert await stream.get_final_text() == "one two three"

    async def test_errors_become_the_sdks_own(self) -> None:
        def busy(request: EngineRequest) -> ScriptedAnswer:
            raise EngineError("too many requests", 429)

        async with serving(FakeEngine(script=busy)) as http:
            root = str(http.base_url).rstrip("/")
            async with openai.AsyncOpenAI(base_url=f"{root}/v1", api_key="k", max_retries=0) as client:
                with pytest.raises(openai.RateLimitError, match="too many requests"):
                    await client.responses.create(model="m", input="hi")
            async with anthropic.AsyncAnthropic(base_url=root, api_key="k", max_retries=0) as claude:
                with pytest.raises(anthropic.RateLimitError, match="too many requests"):
                    await claude.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])


class TestAnswers:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_prefixed_and_unprefixed_answers_are_identical(self, stream: bool) -> None:
        async with serving(FakeEngine()) as http:
            for path in PATHS:
                plain = await http.post(path, json={**BODY, "stream": stream})
                prefixed = await http.post(f"/ng-rollout/3-1{path}", json={**BODY, "stream": stream})
                assert plain.status_code == prefixed.status_code == 200
                assert plain.content == prefixed.content
                assert shown(plain) == shown(prefixed)

    async def test_status_headers_and_body_of_the_engine_pass_as_they_are(self) -> None:
        limited = ScriptedAnswer([b'{"odd"', b":1}"], 429, headers=[("retry-after", "7"), ("x-request-id", "r1")])
        async with serving(FakeEngine(script=lambda request: limited)) as http:
            response = await http.post("/v1/responses", json=BODY)
        assert (response.status_code, response.content) == (429, b'{"odd":1}')
        assert response.headers["retry-after"] == "7"
        assert response.headers["x-request-id"] == "r1"

    async def test_the_engine_gets_the_raw_bytes_and_no_credential(self) -> None:
        engine = FakeEngine()
        raw = b'{ "model":"m", "input" : 12345678901234567890123 }'
        headers = {"authorization": "Bearer sk-1", "x-api-key": "sk-2", "cookie": "c=3", "x-session-id": "s"}
        async with serving(engine) as http:
            await http.post("/v1/responses?beta=1", content=raw, headers=headers)
        request = engine.requests[0]
        assert (request.dialect, request.raw, request.query) == (RESPONSES, raw, "beta=1")
        assert request.body["input"] == 12345678901234567890123
        assert request.headers["x-session-id"] == "s"
        shown = " ".join(request.headers.values())
        assert not any(secret in shown for secret in ("sk-1", "sk-2", "c=3"))
        assert not {"host", "accept-encoding", "content-length", "connection"} & set(request.headers)

    async def test_the_first_byte_arrives_before_the_second_exists(self) -> None:
        gate = asyncio.Event()
        answer = ScriptedAnswer([b"data: 1\n\n", b"data: 2\n\n"], content_type=SSE, gates={1: gate})
        engine = FakeEngine(script=lambda request: answer)
        async with serving(engine) as http, http.stream("POST", "/v1/responses", json=BODY) as response:
            chunks = response.aiter_raw()
            assert await anext(chunks) == b"data: 1\n\n"
            assert not gate.is_set()
            gate.set()
            assert [chunk async for chunk in chunks] == [b"data: 2\n\n"]

    async def test_many_parallel_requests(self) -> None:
        engine = FakeEngine()
        async with serving(engine) as http:
            answers = await asyncio.gather(*(http.post("/v1/chat/completions", json=BODY) for _ in range(200)))
        assert {answer.status_code for answer in answers} == {200}
        assert engine.open_answers == 0

    async def test_health(self) -> None:
        engine = FakeEngine()
        async with serving(engine) as http:
            assert (await http.get("/health")).json() == {"status": "ok", "server": "policy_model"}
            engine.unready = "weights are loading"
            unready = await http.get("/health")
        assert unready.status_code == 503
        assert unready.json()["error"] == "weights are loading"


class TestBadRequests:
    @pytest.mark.parametrize(
        ("raw", "kind", "where"),
        [
            (b"{bad", "json_invalid", ["body", 1]),
            (b"", "json_invalid", ["body", 0]),
            (b'{"a":"\xff"}', "json_invalid", ["body", 6]),
            (b"[" * 100_000, "json_invalid", ["body", 0]),
            (b"[]", "dict_type", ["body"]),
            (b'"text"', "dict_type", ["body"]),
            (b"null", "dict_type", ["body"]),
        ],
    )
    async def test_a_body_that_is_no_object_is_a_422(self, raw: bytes, kind: str, where: list[object]) -> None:
        engine = FakeEngine()
        async with serving(engine) as http:
            for path, dialect in DIALECT_BY_PATH.items():
                response = await http.post(path, content=raw)
                assert response.status_code == 422
                [detail] = response.json()["detail"]
                assert (detail["type"], detail["loc"]) == (kind, where)
                assert "JSON" in message_of(response)
                assert response.json()["error"]["type"] == "invalid_request_error"
                assert (response.json().get("type") == "error") == (dialect == MESSAGES)
        assert not engine.requests

    @pytest.mark.parametrize("path", PATHS)
    async def test_an_engine_that_speaks_no_dialect_is_a_501(self, path: str) -> None:
        engine = FakeEngine(dialects=())
        async with serving(engine) as http:
            response = await http.post(path, json=BODY)
        assert response.status_code == 501
        assert "policy_model" in message_of(response)
        assert not engine.requests

    async def test_a_body_of_twelve_mib_passes(self) -> None:
        engine = FakeEngine()
        async with serving(engine) as http:
            response = await http.post("/v1/responses", json={"input": "x" * 12_000_000})
        assert response.status_code == 200
        assert len(engine.requests[0].body["input"]) == 12_000_000

    @pytest.mark.parametrize("declared", [True, False])
    async def test_one_byte_above_the_cap_is_a_413_with_the_limit(self, declared: bool) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(1001):
                yield b"x"

        engine = FakeEngine()
        async with serving(engine, options=AppOptions(max_body_bytes=1000)) as http:
            response = await http.post("/v1/messages", content=b"x" * 1001 if declared else pieces())
            fitting = await http.post("/v1/messages", content=b'{"a":"' + b"x" * 992 + b'"}')
        assert response.status_code == 413
        assert "at most 1000 bytes" in message_of(response)
        assert response.json()["error"]["type"] == "request_too_large"
        assert fitting.status_code == 200
        assert len(engine.requests) == 1

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/v1/responses", 405),
            ("POST", "/nope", 404),
            ("GET", "/v1/messages/count_tokens", 405),
            ("POST", "/tokenize", 404),
            ("POST", "/v1/responses%0A", 404),
            ("POST", "/ng-capture/quiesce", 404),
        ],
    )
    async def test_unknown_routes_answer_json(self, method: str, path: str, status: int) -> None:
        async with serving(FakeEngine()) as http:
            response = await http.request(method, path)
        assert response.status_code == status
        assert message_of(response)

    @pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer other"}, {"x-api-key": "other"}])
    async def test_a_wrong_run_token_is_a_401(self, headers: dict[str, str]) -> None:
        engine = FakeEngine()
        async with serving(engine, run_token="token-1") as http:
            response = await http.post("/v1/messages", json=BODY, headers=headers)
            listing = await http.get("/v1/models", headers=headers)
        assert response.status_code == listing.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"
        assert "token-1" not in response.text
        assert not engine.requests

    @pytest.mark.parametrize(
        "headers",
        [
            {"authorization": "Bearer token-1"},
            {"x-api-key": "token-1"},
            {"authorization": "Bearer other", "x-api-key": "token-1"},
        ],
    )
    async def test_the_run_token_opens_the_server(self, headers: dict[str, str]) -> None:
        async with serving(FakeEngine(), run_token="token-1") as http:
            assert (await http.post("/v1/messages", json=BODY, headers=headers)).status_code == 200
            assert (await http.get("/health")).status_code == 200


@given(raw=st.one_of(st.binary(), json_bytes()))
@settings(max_examples=150)
def test_any_body_gets_an_answer_or_a_422(raw: bytes) -> None:
    async def post() -> httpx.Response:
        engine = FakeEngine()
        transport = httpx.ASGITransport(build_app(engine, server_name="policy_model", capture=None))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
            response = await http.post("/v1/responses", content=raw)
        assert len(engine.requests) == (response.status_code == 200)
        return response

    response = asyncio.run(post())
    try:
        is_object = isinstance(json.loads(raw.decode("utf-8")), dict)
    except ValueError:
        is_object = False
    assert response.status_code == (200 if is_object else 422)


class TestEngineFailures:
    @pytest.mark.parametrize(
        ("error", "status"),
        [
            (EngineError("it broke"), 502),
            (EngineUnavailableError("not there"), 503),
            (EngineTimeoutError("too slow"), 504),
        ],
    )
    async def test_an_engine_error_has_its_status_and_the_dialects_shape(self, error: EngineError, status: int) -> None:
        def fail(request: EngineRequest) -> ScriptedAnswer:
            raise error

        async with serving(FakeEngine(script=fail)) as http:
            for path, dialect in DIALECT_BY_PATH.items():
                response = await http.post(path, json=BODY)
                assert response.status_code == status
                assert message_of(response) == error.message
                assert (response.json().get("type") == "error") == (dialect == MESSAGES)

    async def test_a_body_that_the_engine_finds_wrong_is_a_422_with_detail_and_the_dialects_error(self) -> None:
        def refuse(request: EngineRequest) -> ScriptedAnswer:
            raise UnsupportedRequestError("input: is missing", 422)

        async with serving(FakeEngine(script=refuse)) as http:
            for path in PATHS:
                response = await http.post(path, json=BODY)
                assert response.status_code == 422
                assert response.json()["detail"] == [
                    {"type": "value_error", "loc": ["body"], "msg": "input: is missing"}
                ]
                assert message_of(response) == "input: is missing"

    async def test_an_engine_failure_is_logged_and_a_clients_mistake_is_not(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        errors = iter([EngineError("it broke"), EngineError("your mistake", 400)])

        def fail(request: EngineRequest) -> ScriptedAnswer:
            raise next(errors)

        async with serving(FakeEngine(script=fail)) as http:
            await http.post("/v1/responses", json=BODY)
            await http.post("/v1/responses", json=BODY)
        logged = [record.getMessage() for record in caplog.records if record.name == "gym_ray.model_server.app"]
        assert logged == ["policy_model: answered 502: it broke"]

    async def test_a_body_in_an_engine_error_passes_as_it_is(self) -> None:
        def fail(request: EngineRequest) -> ScriptedAnswer:
            raise EngineError("bad", 400, b'{"error":{"message":"from the engine"}}')

        async with serving(FakeEngine(script=fail)) as http:
            response = await http.post("/v1/responses", json=BODY)
        assert (response.status_code, response.content) == (400, b'{"error":{"message":"from the engine"}}')

    async def test_an_unexpected_error_is_a_500_that_leaks_no_text(self) -> None:
        def fail(request: EngineRequest) -> ScriptedAnswer:
            raise KeyError("secret-in-text")

        async with serving(FakeEngine(script=fail)) as http:
            response = await http.post("/ng-rollout/0-0/v1/messages", json=BODY)
        assert response.status_code == 500
        assert response.json()["type"] == "error"
        assert "secret-in-text" not in response.text

    @pytest.mark.parametrize("content_type", [SSE, "application/json"])
    async def test_an_engine_that_dies_in_mid_answer_cuts_the_connection(self, content_type: str) -> None:
        answer = ScriptedAnswer([b"data: 1\n\n"], content_type=content_type, cut=True)
        engine = FakeEngine(script=lambda request: answer)
        async with serving(engine) as http:
            with pytest.raises(httpx.RemoteProtocolError):
                await http.post("/v1/responses", json=BODY)
            assert engine.open_answers == 0


class TestClientLeaves:
    async def test_before_the_answer(self) -> None:
        never = asyncio.Event()
        engine = FakeEngine(script=lambda request: ScriptedAnswer([b"{}"], gates={0: never}))
        async with serving(engine) as http:
            request = asyncio.create_task(http.post("/v1/responses", json=BODY))
            await until(lambda: engine.open_answers == 1)
            request.cancel()
            await until(lambda: engine.open_answers == 0)
        assert engine.closed_early == 1

    async def test_in_mid_stream(self) -> None:
        never = asyncio.Event()
        answer = ScriptedAnswer([b"data: 1\n\n", b"data: 2\n\n"], content_type=SSE, gates={1: never})
        engine = FakeEngine(script=lambda request: answer)
        async with serving(engine) as http:
            async with http.stream("POST", "/v1/responses", json=BODY) as response:
                assert await anext(response.aiter_raw()) == b"data: 1\n\n"
                assert engine.open_answers == 1
            await until(lambda: engine.open_answers == 0)
            assert (await http.get("/health")).status_code == 200
        assert engine.closed_early == 1
