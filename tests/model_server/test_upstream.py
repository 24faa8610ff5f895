"""The HTTP upstream: what goes out, what comes back, and what every kind of failure becomes."""

from __future__ import annotations

import asyncio
import gzip
import json
import pickle
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.errors import (
    EngineError,
    EngineTimeoutError,
    EngineUnavailableError,
    SettingsError,
    UnsupportedRequestError,
)
from gym_ray.model_server import upstream as upstream_module
from gym_ray.model_server.app import build_app
from gym_ray.model_server.engine import EngineAnswer, EngineRequest
from gym_ray.model_server.serving import AppServer
from gym_ray.model_server.upstream import UpstreamEngine, UpstreamLimits
from gym_ray.testing.fake_upstream import FakeUpstream, UpstreamRequest, gzipped, recorded
from gym_ray.testing.script import SSE, ScriptedAnswer
from gym_ray.testing.waiting import until

KEY = "sk-very-secret"
ALL = (RESPONSES, CHAT, MESSAGES)
RECORDINGS = {
    f"{path.parent.name}/{path.stem}": json.loads(path.read_text())
    for path in sorted((Path(__file__).parents[1] / "recordings").glob("*/*.json"))
}
GENERATION = {name: recording for name, recording in RECORDINGS.items() if recording["path"] in DIALECT_BY_PATH}


@dataclass
class Chain:
    """A client in front of a model server in front of an upstream."""

    upstream: FakeUpstream
    engine: UpstreamEngine
    http: httpx.AsyncClient


@asynccontextmanager
async def chain(
    script: Callable[[UpstreamRequest], ScriptedAnswer] | None = None, **options: Any
) -> AsyncIterator[Chain]:
    fake = FakeUpstream(script)
    upstream = AppServer(fake)
    await upstream.start()
    engine = UpstreamEngine(f"{upstream.url}/v1", **{"api_key": KEY, "dialects": ALL, **options})
    await engine.start()
    server = AppServer(build_app(engine, server_name="policy_model", capture=None))
    await server.start()
    limits = httpx.Limits(max_connections=None)
    try:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30, limits=limits) as http:
            yield Chain(fake, engine, http)
    finally:
        await server.stop(grace_s=5)
        await engine.aclose()
        await upstream.stop(grace_s=5)


@asynccontextmanager
async def started(engine: UpstreamEngine) -> AsyncIterator[UpstreamEngine]:
    await engine.start()
    try:
        yield engine
    finally:
        await engine.aclose()


def request_of(dialect: str = CHAT, raw: bytes = b'{"model":"m"}', **more: Any) -> EngineRequest:
    return EngineRequest(dialect, json.loads(raw), raw, **more)


async def read(answer: EngineAnswer) -> bytes:
    try:
        return b"".join([chunk async for chunk in answer.body])
    finally:
        await answer.aclose()


async def ask(engine: UpstreamEngine, request: EngineRequest) -> bytes:
    return await read(await engine.answer(request))


async def collect(http: httpx.AsyncClient, received: list[bytes]) -> None:
    async with http.stream("POST", "/v1/responses", json={}) as response:
        async for chunk in response.aiter_raw():
            received.append(chunk)  # noqa: PERF401 - what came before a cut has to stay


def recut(answer: ScriptedAnswer, size: int | None) -> ScriptedAnswer:
    """Cut a body into pieces of ``size`` bytes; byte by byte only as far as a test's time allows."""
    if size is None:
        return answer
    body = answer.body[: 1000 * size]
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return ScriptedAnswer(pieces, answer.status, answer.content_type)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections, and that nobody else gets meanwhile."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


class TestRecordings:
    @pytest.mark.parametrize("cut", [None, 1, 1000], ids=["as recorded", "byte by byte", "in thousands"])
    async def test_a_real_answer_reaches_the_client_byte_for_byte(self, cut: int | None) -> None:
        answers: list[ScriptedAnswer] = []
        async with chain(lambda request: answers[-1]) as link:
            for name, recording in GENERATION.items():
                answers.append(recut(recorded(recording), cut))
                response = await link.http.post(recording["path"], json=recording["request"])
                seen = link.upstream.requests[-1]
                assert response.content == answers[-1].body, name
                assert response.status_code == recording["status"], name
                assert response.headers["content-type"] == answers[-1].content_type, name
                assert (seen.path, json.loads(seen.body)) == (recording["path"], recording["request"]), name

    def test_there_are_recordings_of_both_engines(self) -> None:
        assert {name.split("/")[0] for name in GENERATION} == {"llama_cpp", "vllm_0_32"}
        assert len(GENERATION) >= 20


class TestRequests:
    @pytest.mark.parametrize("path", list(DIALECT_BY_PATH))
    async def test_the_servers_key_replaces_the_clients(self, path: str) -> None:
        headers: dict[str, Any] = {
            "authorization": "Bearer client-key",
            "x-api-key": "client-key",
            "api-key": "client-key",
            "cookie": "client-key",
            "openai-organization": "client-key",
            "proxy-authorization": "client-key",
            "connection": "keep-alive, x-hop",
            "x-hop": "client-key",
            "accept-encoding": "gzip, br, zstd",
            "anthropic-version": "2023-06-01",
            "x-note": b"caf\xe9",
        }
        async with chain() as link:
            response = await link.http.post(f"{path}?beta=%FF&q=caf%C3%A9", json={"model": "m"}, headers=headers)
        assert response.status_code == 200
        [seen] = link.upstream.requests
        assert "client-key" not in str(seen.headers)
        assert seen.headers["authorization"] == f"Bearer {KEY}"
        assert seen.headers.get("x-api-key") == (KEY if path == "/v1/messages" else None)
        assert seen.headers["accept-encoding"] == "identity"
        assert seen.headers["x-note"] == "caf\xe9"
        assert seen.headers["anthropic-version"] == "2023-06-01"
        assert seen.headers["content-type"] == "application/json"
        assert seen.query == "beta=%FF&q=caf%C3%A9"

    async def test_without_a_key_none_is_sent(self) -> None:
        async with chain(api_key=None) as link:
            await link.http.post("/v1/responses", json={}, headers={"authorization": "Bearer client-key"})
        assert "authorization" not in link.upstream.requests[0].headers

    async def test_without_a_model_name_the_bytes_are_the_clients(self) -> None:
        raw = b'{ "model":"m",\n "seed": 18446744073709551617, "t": 1.10, "unknown": {"a":[null]} }'
        async with chain() as link:
            await link.http.post("/v1/chat/completions", content=raw)
        assert link.upstream.requests[0].body == raw

    async def test_a_model_name_replaces_the_clients_and_nothing_else(self) -> None:
        raw = b'{"z":1,"model":"m","seed":18446744073709551617,"bad":"\\ud800","unknown":{"a":[null,0.1]}}'
        async with chain(model_name="real") as link:
            await link.http.post("/v1/chat/completions", content=raw)
            await link.http.post("/v1/chat/completions", content=b'{ "model": "real" }')
            await link.http.post("/v1/chat/completions", content=b"{}")
        bodies = [request.body for request in link.upstream.requests]
        assert bodies == [raw.replace(b'"m"', b'"real"'), b'{ "model": "real" }', b'{"model":"real"}']

    async def test_deep_bodies_pass_or_are_refused_and_never_crash(self) -> None:
        def nested(depth: int) -> bytes:
            return b'{"model":"m","a":' + b"[" * depth + b"]" * depth + b"}"

        async with chain(model_name="real") as link:
            fine = await link.http.post("/v1/chat/completions", content=nested(300))
            deep = await link.http.post("/v1/chat/completions", content=nested(900))
        assert fine.status_code == 200
        assert link.upstream.requests[0].body == nested(300).replace(b'"m"', b'"real"')
        assert deep.status_code == 400
        assert "nested too deeply" in deep.json()["error"]["message"]

    async def test_a_cookie_of_the_upstream_is_neither_kept_nor_passed_on(self) -> None:
        answer = ScriptedAnswer([b"{}"], headers=[("set-cookie", "session=1; Path=/"), ("x-request-id", "r1")])
        async with chain(lambda request: answer) as link:
            first = await link.http.post("/v1/responses", json={})
            await link.http.post("/v1/responses", json={})
        assert first.headers["x-request-id"] == "r1"
        assert "set-cookie" not in first.headers
        assert "cookie" not in link.upstream.requests[1].headers


class TestAnswers:
    async def test_the_first_byte_arrives_before_the_second_exists(self) -> None:
        gate = asyncio.Event()
        answer = ScriptedAnswer([b"data: 1\n\n", b"data: 2\n\n"], content_type=SSE, gates={1: gate})
        async with (
            chain(lambda request: answer) as link,
            link.http.stream("POST", "/v1/responses", json={}) as response,
        ):
            chunks = response.aiter_raw()
            assert await anext(chunks) == b"data: 1\n\n"
            gate.set()
            assert [chunk async for chunk in chunks] == [b"data: 2\n\n"]

    async def test_headers_arrive_before_the_first_byte_exists(self) -> None:
        gate = asyncio.Event()
        answer = ScriptedAnswer([b"data: 1\n\n"], content_type=SSE, gates={0: gate})
        async with (
            chain(lambda request: answer) as link,
            link.http.stream("POST", "/v1/responses", json={}) as response,
        ):
            assert response.headers["content-type"] == SSE
            gate.set()
            assert await response.aread() == b"data: 1\n\n"

    async def test_errors_pass_with_status_headers_and_body(self) -> None:
        statuses = [400, 401, 403, 404, 429, 500, 503]
        body = b'{"error":{"message":"no"}}'
        coming = iter(statuses)
        async with chain(lambda request: ScriptedAnswer([body], next(coming), headers=[("retry-after", "3")])) as link:
            answers = [await link.http.post("/v1/responses", json={}) for _ in statuses]
        assert [answer.status_code for answer in answers] == statuses
        assert {(answer.content, answer.headers["retry-after"]) for answer in answers} == {(body, "3")}
        assert len(link.upstream.requests) == len(statuses)  # nothing is sent twice

    @pytest.mark.parametrize("cut", [1, 7, 1000])
    async def test_a_refusal_that_repeats_the_servers_key_reaches_the_client_without_it(self, cut: int) -> None:
        body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}. Bearer {KEY}"}}).encode()
        chunks = [body[start : start + cut] for start in range(0, len(body), cut)]
        answer = ScriptedAnswer(chunks, 401, headers=[("content-length", str(len(body)))])
        async with chain(lambda request: answer) as link:
            response = await link.http.post("/v1/responses", json={})
        assert response.status_code == 401
        assert response.content == body.replace(KEY.encode(), b"[redacted]")

    async def test_default_headers_give_way_to_the_clients(self) -> None:
        async with chain(default_headers={"anthropic-version": "2023-06-01"}) as link:
            await link.http.post("/v1/messages", json={})
            await link.http.post("/v1/messages", json={}, headers={"Anthropic-Version": "2029-01-01"})
        sent = [request.headers["anthropic-version"] for request in link.upstream.requests]
        assert sent == ["2023-06-01", "2029-01-01"]

    async def test_token_counts_come_from_an_upstream_that_speaks_messages(self) -> None:
        counted = ScriptedAnswer([b'{"input_tokens":12}'])
        async with chain(lambda request: counted, model_name="real-model") as link:
            asked = EngineRequest(MESSAGES, {"model": "m"}, b'{"model":"m"}')
            assert await (await link.engine.count_tokens(asked)).read() == b'{"input_tokens":12}'
        sent = link.upstream.requests[-1]
        assert (sent.path, json.loads(sent.body)) == ("/v1/messages/count_tokens", {"model": "real-model"})
        async with started(UpstreamEngine("http://127.0.0.1:9/v1", dialects=(CHAT,))) as engine:
            with pytest.raises(UnsupportedRequestError, match="messages") as caught:
                await engine.count_tokens(asked)
        assert caught.value.status == 501

    async def test_routes_beside_the_versioned_ones_get_the_key_too(self) -> None:
        async with chain(lambda request: ScriptedAnswer([b"{}"])) as link:
            assert await (await link.engine.post_at_root("/tokenize", b'{"a":1}')).read() == b"{}"
        sent = link.upstream.requests[-1]
        assert (sent.path, sent.body, sent.headers["authorization"]) == ("/tokenize", b'{"a":1}', f"Bearer {KEY}")

    async def test_an_answer_compressed_against_our_wish_arrives_readable(self) -> None:
        answer = ScriptedAnswer([b'data: {"a":1}\n\n'] * 50, content_type=SSE)
        async with chain(lambda request: gzipped(answer)) as link:
            response = await link.http.post("/v1/responses", json={})
        assert response.content == answer.body
        assert "content-encoding" not in response.headers

    async def test_an_unknown_coding_passes_with_its_name(self) -> None:
        packed = gzip.compress(b"{}")
        answer = ScriptedAnswer([packed], headers=[("content-encoding", "x-own")])
        async with (
            chain(lambda request: answer) as link,
            link.http.stream("POST", "/v1/responses", json={}) as response,
        ):
            assert b"".join([chunk async for chunk in response.aiter_raw()]) == packed
            assert response.headers["content-encoding"] == "x-own"

    async def test_a_broken_compressed_body_cuts_the_connection(self) -> None:
        answer = ScriptedAnswer([b"this is not gzip"], headers=[("content-encoding", "gzip")])
        async with chain(lambda request: answer) as link:
            with pytest.raises(httpx.RemoteProtocolError):
                await link.http.post("/v1/responses", json={})

    async def test_models_pass(self) -> None:
        async with chain() as link:
            listing = (await link.http.get("/v1/models", headers={"authorization": "Bearer client-key"})).json()
        assert listing["data"][0]["id"] == "fake-model"
        assert link.upstream.requests[0].headers["authorization"] == f"Bearer {KEY}"

    async def test_five_hundred_requests_share_a_bounded_pool(self) -> None:
        async with chain(limits=UpstreamLimits(max_connections=16)) as link:
            requests = [request_of(raw=b'{"n":%d}' % number) for number in range(500)]
            answers = await asyncio.gather(*(link.engine.answer(request) for request in requests[:16]))
            waiting = [asyncio.create_task(ask(link.engine, request)) for request in requests[16:]]
            assert link.upstream.most_open <= 16  # sixteen unread answers hold every place
            bodies = await asyncio.gather(*(read(answer) for answer in answers))
            bodies += await asyncio.gather(*waiting)
        assert len({*bodies}) == 1
        assert sorted(json.loads(request.body)["n"] for request in link.upstream.requests) == list(range(500))
        assert link.upstream.most_open <= 16

    async def test_waiting_for_a_free_connection_counts_as_time(self) -> None:
        never = ScriptedAnswer([b"{}"], gates={0: asyncio.Event()})
        patient, hasty = (UpstreamLimits(max_connections=1, total_timeout_s=seconds) for seconds in (60, 0.1))
        async with chain(lambda request: never, limits=patient) as link:
            for _ in range(2):
                link.engine._limits = patient
                taken = await link.engine.answer(request_of())
                link.engine._limits = hasty
                with pytest.raises(EngineTimeoutError, match=r"within 0\.1 s"):
                    await link.engine.answer(request_of())
                await taken.aclose()
                await taken.aclose()  # gives its place back once

    async def test_header_bytes_beyond_ascii_pass(self) -> None:
        noted = ScriptedAnswer([b"{}"], headers=[("x-note", "\u6f22".encode().decode("latin-1"))])
        async with chain(lambda request: noted) as link:
            response = await link.http.post("/v1/responses", json={})
        assert dict(response.headers.raw)[b"x-note"] == "\u6f22".encode()


class TestFailures:
    @pytest.mark.parametrize("chunks", [[b'{"half":'], [b'data: {"a":1}\n\n', b"data: {"]], ids=["json", "sse"])
    async def test_an_upstream_that_dies_in_mid_answer_cuts_the_client_too(self, chunks: list[bytes]) -> None:
        answer = ScriptedAnswer(chunks, content_type=SSE if len(chunks) > 1 else "application/json", cut=True)
        async with chain(lambda request: answer) as link:
            received: list[bytes] = []
            with pytest.raises(httpx.RemoteProtocolError):
                await collect(link.http, received)
            assert b"".join(received) == answer.body
            assert len(link.upstream.requests) == 1

    async def test_a_body_shorter_than_its_length_cuts_the_client_too(self) -> None:
        answer = ScriptedAnswer([b'{"half":'], headers=[("content-length", "50")], cut=True)
        async with chain(lambda request: answer) as link:
            with pytest.raises(httpx.RemoteProtocolError):
                await link.http.post("/v1/responses", json={})

    async def test_a_death_before_the_status_is_a_502_and_not_tried_again(self) -> None:
        asked = 0

        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            await reader.readuntil(b"\r\n\r\n")
            asked += 1
            writer.close()

        listener = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with listener, started(UpstreamEngine(f"http://127.0.0.1:{port}/v1", api_key=KEY)) as engine:
            with pytest.raises(EngineError, match=rf"connection to the upstream at http://127.0.0.1:{port}/v1 broke"):
                await engine.answer(request_of())
        assert asked == 1

    async def test_a_refused_connection_is_a_503(self, closed_port: int) -> None:
        async with started(UpstreamEngine(f"http://127.0.0.1:{closed_port}/v1", api_key=KEY)) as engine:
            with pytest.raises(EngineUnavailableError, match=f":{closed_port}/v1: Connection refused") as caught:
                await engine.answer(request_of())
            with pytest.raises(EngineUnavailableError, match=f":{closed_port}"):
                await engine.models()
        assert caught.value.status == 503

    async def test_an_unknown_host_is_a_503(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*args: object, **kwargs: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        async with started(UpstreamEngine("http://no-such-host.invalid/v1")) as engine:
            with pytest.raises(EngineUnavailableError, match=r"no connection to .*no-such-host\.invalid.*not known"):
                await engine.answer(request_of())

    async def test_a_hanging_upstream_is_a_504(self) -> None:
        answer = ScriptedAnswer([b"{}"], start_gate=asyncio.Event())
        async with chain(lambda request: answer, limits=UpstreamLimits(read_timeout_s=0.05)) as link:
            response = await link.http.post("/v1/responses", json={})
            assert response.status_code == 504
            assert "0.05 s" in response.json()["error"]["message"]
            await until(lambda: link.upstream.aborted == 1)

    async def test_the_total_time_bounds_a_stream_that_never_ends(self) -> None:
        answer = ScriptedAnswer([b"data: 1\n\n", b""], content_type=SSE, gates={1: asyncio.Event()})
        async with chain(lambda request: answer, limits=UpstreamLimits(total_timeout_s=1)) as link:
            with pytest.raises(EngineTimeoutError, match="did not finish within 1 s"):
                await ask(link.engine, request_of())
            await until(lambda: link.upstream.aborted == 1)

    async def test_a_redirect_is_an_error_with_its_target(self) -> None:
        answer = ScriptedAnswer([b""], 307, headers=[("location", "https://user:pw@other.example/v1/responses?key=k")])
        async with chain(lambda request: answer) as link:
            response = await link.http.post("/v1/responses", json={})
        assert response.status_code == 502
        assert "https://other.example/v1/responses: give the final address" in response.json()["error"]["message"]
        assert "location" not in response.headers

    @pytest.mark.parametrize("url", ["ftp://host/v1", "nonsense", "http://h:port/v1"])
    async def test_an_unusable_url_is_named(self, url: str) -> None:
        async with started(UpstreamEngine(url, api_key=KEY)) as engine:
            with pytest.raises(EngineUnavailableError, match="no usable URL"):
                await engine.answer(request_of())

    async def test_a_client_that_leaves_aborts_the_upstream(self) -> None:
        answer = ScriptedAnswer([b"data: 1\n\n", b""], content_type=SSE, gates={1: asyncio.Event()})
        async with chain(lambda request: answer) as link:
            async with link.http.stream("POST", "/v1/responses", json={}) as response:
                assert await anext(response.aiter_raw()) == b"data: 1\n\n"
            await until(lambda: link.upstream.aborted == 1)
            assert link.upstream.open_answers == 0

    async def test_a_client_that_leaves_before_the_status_aborts_the_upstream(self) -> None:
        answer = ScriptedAnswer([b"{}"], start_gate=asyncio.Event())
        async with chain(lambda request: answer) as link:
            request = asyncio.create_task(link.http.post("/v1/responses", json={}))
            await until(lambda: link.upstream.open_answers == 1)
            request.cancel()
            await until(lambda: link.upstream.aborted == 1)

    async def test_no_error_holds_the_key_and_every_error_can_be_pickled(self, closed_port: int) -> None:
        engine = UpstreamEngine(f"http://user:{KEY}@127.0.0.1:{closed_port}/v1", api_key=KEY)
        async with started(engine):
            with pytest.raises(EngineUnavailableError) as caught:
                await engine.answer(request_of())
        assert KEY not in str(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    @pytest.mark.parametrize("key", ["sk-\nsecret", "sk-\x7fsecret", "sk-schlüssel"])
    def test_a_key_that_no_header_carries_is_a_settings_error_without_the_key(self, key: str) -> None:
        with pytest.raises(SettingsError, match="policy_api_key") as caught:
            UpstreamEngine("http://127.0.0.1/v1", api_key=key)
        assert key not in str(caught.value)

    async def test_blanks_around_a_key_are_not_part_of_it(self) -> None:
        async with chain(api_key=f" {KEY}\n") as link:
            await link.http.post("/v1/responses", json={})
        assert link.upstream.requests[0].headers["authorization"] == f"Bearer {KEY}"

    async def test_use_before_the_start_or_after_the_end_is_an_error(self) -> None:
        engine = UpstreamEngine("http://127.0.0.1:9/v1")
        with pytest.raises(EngineUnavailableError, match="not started"):
            await engine.answer(request_of())
        await engine.start()
        await engine.aclose()
        await engine.aclose()
        with pytest.raises(EngineUnavailableError, match="not started"):
            await engine.models()


class TestReady:
    async def test_any_answer_below_500_will_do(self) -> None:
        coming = iter([200, 400, 404, 429])
        async with chain(lambda request: ScriptedAnswer([b"{}"], next(coming))) as link:
            for _ in range(4):
                await link.engine.ready(20)
            assert [request.path for request in link.upstream.requests] == 4 * ["/v1/models"]

    async def test_a_refused_key_names_its_setting_at_once(self) -> None:
        coming = iter([401, 403])
        async with chain(lambda request: ScriptedAnswer([b"{}"], next(coming))) as link:
            for status in (401, 403):
                with pytest.raises(EngineUnavailableError, match=rf"refused the key \({status} .*check policy_api_key"):
                    await link.engine.ready(600)

    async def test_a_missing_key_names_its_setting(self) -> None:
        async with chain(lambda request: ScriptedAnswer([b"{}"], 401), api_key="", key_setting="judge_key") as link:
            with pytest.raises(EngineUnavailableError, match=r"wants a key, and none is set .*check judge_key"):
                await link.engine.ready(600)

    async def test_an_upstream_whose_places_are_all_taken_is_ready(self) -> None:
        never = ScriptedAnswer([b"{}"], gates={0: asyncio.Event()})
        answers = {"GET": ScriptedAnswer([b"{}"]), "POST": never}
        async with chain(lambda request: answers[request.method], limits=UpstreamLimits(max_connections=1)) as link:
            busy = await link.engine.answer(request_of())
            await link.engine.ready(20)
            await busy.aclose()

    async def test_it_waits_through_server_errors(self) -> None:
        statuses = iter([503, 500, 200])
        async with chain(lambda request: ScriptedAnswer([b"{}"], next(statuses))) as link:
            await link.engine.ready(20)
            assert len(link.upstream.requests) == 3

    async def test_server_errors_to_the_end_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(upstream_module, "_FIRST_PAUSE_S", 60.0)  # one answer, and no time for a second
        async with chain(lambda request: ScriptedAnswer([b"{}"], 503)) as link:
            with pytest.raises(EngineUnavailableError, match="not ready after 30 s: it answered 503 Service"):
                await link.engine.ready(30)

    async def test_a_hanging_upstream_is_not_ready(self) -> None:
        answer = ScriptedAnswer([b"{}"], start_gate=asyncio.Event())
        async with chain(lambda request: answer) as link:
            with pytest.raises(EngineUnavailableError, match=r"not ready after 0\.1 s: no answer to GET /models"):
                await link.engine.ready(0.1)

    async def test_nothing_there_is_named_with_the_address(self, closed_port: int) -> None:
        async with started(UpstreamEngine(f"http://127.0.0.1:{closed_port}/v1")) as engine:
            with pytest.raises(EngineUnavailableError, match=f"127.0.0.1:{closed_port}"):
                await engine.ready(0.1)
