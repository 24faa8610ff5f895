"""What the engine says when its llama.cpp server is slow, wrong, dying or gone."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.dialects.terminal import TerminalScanner
from gym_ray.errors import EngineError, EngineTimeoutError, EngineUnavailableError, UnsupportedRequestError
from gym_ray.model_server.engine import EngineRequest
from gym_ray.model_server.llama_cpp.engine import LlamaCppEngine
from gym_ray.testing.fake_llama_cpp import LAST, MARKERS, FakeLlamaCpp, running_engine, sse


def request(dialect: str, **changes: Any) -> EngineRequest:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
    if dialect == RESPONSES:
        body = {"input": "hi"}
    return EngineRequest(dialect, {**body, **changes}, b"")


async def bytes_of(engine: LlamaCppEngine, asked: EngineRequest) -> bytes:
    answer = await engine.answer(asked)
    try:
        return b"".join([chunk async for chunk in answer.body])
    finally:
        await answer.aclose()


DIALECTS = sorted(DIALECT_BY_PATH.values())


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_json_and_stream_say_the_same(dialect: str) -> None:
    llama = FakeLlamaCpp()
    async with running_engine(llama) as engine:
        whole = json.loads(await bytes_of(engine, request(dialect)))
        llama.answer = sse(
            {"content": "H", "tokens": [1], "stop": False},
            {"content": "i \u2028.", "tokens": [2], "stop": False},
            {"content": "\n", "tokens": [3], "stop": False},
            LAST,
        )
        options = {"stream_options": {"include_usage": True}} if dialect == CHAT else {}
        streamed = reassemble(dialect, await bytes_of(engine, request(dialect, stream=True, **options)))
    assert "Hi." in json.dumps(whole)
    assert streamed is not None
    assert "Hi \\u2028." in json.dumps(streamed)
    assert streamed["usage"] == whole["usage"]


async def test_what_is_sent_to_llama_cpp() -> None:
    llama = FakeLlamaCpp()
    async with running_engine(llama, default_max_tokens=77) as engine:
        await bytes_of(engine, request(RESPONSES))
        await bytes_of(engine, request(CHAT, temperature=0, top_p=0.5, seed=4, stop=["x"], max_tokens=3))
    first, second = llama.requests
    assert first["prompt"][:2] == [2, 105]
    assert (first["n_predict"], first["temperature"], first["top_p"], first["top_k"], first["min_p"]) == (
        77,
        1,
        1,
        0,
        0,
    )
    assert (first["n_probs"], first["return_tokens"], first["stream"]) == (1, True, False)
    assert (second["n_predict"], second["temperature"], second["top_p"]) == (3, 0, 0.5)
    assert (second["seed"], second["stop"]) == (4, ["x"])


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_engine_that_dies_in_mid_stream_ends_in_the_dialects_error(dialect: str) -> None:
    llama = FakeLlamaCpp()
    async with running_engine(llama) as engine:
        for answer in (
            sse({"content": "Hello", "tokens": [1], "stop": False}),
            sse({"content": "Hello", "tokens": [1], "stop": False}, {"error": {"message": "out of memory"}}),
        ):
            llama.answer = answer
            data = await bytes_of(engine, request(dialect, stream=True))
            assert TerminalScanner(dialect).feed(data) == "error"
            assert b"Hello" in data


async def test_a_connection_that_breaks_in_mid_stream_is_told() -> None:
    gone = asyncio.Event()

    async def half_an_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0]) if "POST" in head else 0
        body = json.loads(await reader.readexactly(length)) if length else {}
        if "/completion" in head:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            frame = b'data: {"content": "Hello", "stop": false}\n\n'
            writer.write(f"{len(frame):x}\r\n".encode() + frame + b"\r\n")
            gone.set()
        else:
            answer: dict[str, Any] = {"default_generation_settings": {"n_ctx": 4096}}
            if "/tokenize" in head:
                answer = {"tokens": [MARKERS[body["content"][0]]] if body["parse_special"] else [2, 105]}
            text = json.dumps(answer).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(text) + text)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(half_an_answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    engine = LlamaCppEngine(f"http://127.0.0.1:{port}", model_name="gemma")
    await engine.start()
    try:
        data = await bytes_of(engine, request(MESSAGES, stream=True))
    finally:
        await engine.aclose()
        server.close()
        await server.wait_closed()
    assert gone.is_set()
    assert TerminalScanner(MESSAGES).feed(data) == "error"
    assert b"broke off" in data


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_of_llama_cpp_are_errors_before_anything_is_sent(stream: bool) -> None:
    llama = FakeLlamaCpp()
    async with running_engine(llama) as engine:
        llama.answer = JSONResponse({"error": {"message": "boom"}}, 500)
        with pytest.raises(EngineError, match=r"answered 500: .*boom") as caught:
            await engine.answer(request(RESPONSES, stream=stream))
        assert (caught.value.status, caught.value.body) == (502, b"")
        llama.answer = JSONResponse({"error": {"message": "failed to parse grammar"}}, 400)
        with pytest.raises(UnsupportedRequestError, match="has no grammar") as refused:
            await engine.answer(request(RESPONSES, stream=stream))
        assert refused.value.status == 400
        llama.answer = JSONResponse({}, 503)
        with pytest.raises(EngineUnavailableError, match="loading its model"):
            await engine.answer(request(RESPONSES, stream=stream))


async def test_an_answer_that_is_no_json_is_an_error() -> None:
    llama = FakeLlamaCpp()
    llama.answer = Response(b"<html>", 200)
    async with running_engine(llama) as engine:
        with pytest.raises(EngineError, match="answered /completion with no JSON object"):
            await engine.answer(request(RESPONSES))


async def test_a_silent_engine_is_a_timeout() -> None:
    llama = FakeLlamaCpp()
    llama.hang = asyncio.Event()
    async with running_engine(llama, request_timeout_s=0.2) as engine:
        with pytest.raises(EngineTimeoutError, match=r"silent for 0\.2 s"):
            await engine.answer(request(RESPONSES))
        llama.hang.set()


async def test_generations_that_wait_do_not_keep_the_health_check_waiting() -> None:
    llama = FakeLlamaCpp()
    llama.hang = asyncio.Event()
    async with running_engine(llama, max_connections=2) as engine:
        await engine.ready(20)
        calls = [asyncio.create_task(bytes_of(engine, request(RESPONSES))) for _ in range(5)]
        while len(llama.requests) < 2:  # noqa: ASYNC110 - both connections are taken now
            await asyncio.sleep(0.01)
        await asyncio.wait_for(engine.ready(20), 20)
        assert len(llama.requests) == 2
        llama.hang.set()
        assert len(await asyncio.gather(*calls)) == 5


async def test_an_engine_that_is_down_is_unavailable() -> None:
    with socket.socket() as deaf:  # a port that refuses connections, and that nobody else gets meanwhile
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        engine = LlamaCppEngine(url, model_name="gemma")
        await engine.start()
        try:
            with pytest.raises(EngineUnavailableError, match=f"{url} cannot be reached") as caught:
                await engine.answer(request(RESPONSES))
            assert caught.value.status == 503
            with pytest.raises(EngineUnavailableError, match=r"not ready after 0\.2 s: .*cannot be reached"):
                await engine.ready(0.2)
        finally:
            await engine.aclose()
            await engine.aclose()


async def test_an_engine_that_still_loads_is_waited_for() -> None:
    llama = FakeLlamaCpp()
    llama.healthy = False
    async with running_engine(llama) as engine:
        with pytest.raises(EngineUnavailableError, match="loading its model"):
            await engine.ready(0.2)
        waiting = asyncio.create_task(engine.ready(20))
        llama.healthy = True
        await waiting


async def test_a_prompt_that_fills_the_context_is_refused_and_a_long_answer_is_cut_to_the_room() -> None:
    llama = FakeLlamaCpp(context_tokens=40)
    async with running_engine(llama) as engine:
        with pytest.raises(UnsupportedRequestError, match=r"the prompt has \d+ tokens; .* context length is 40 tokens"):
            await engine.answer(request(RESPONSES, input="x" * 40))
        await bytes_of(engine, request(RESPONSES, max_output_tokens=1000))
    assert len(llama.requests) == 1
    assert llama.requests[0]["n_predict"] + len(llama.requests[0]["prompt"]) == 40


@pytest.mark.parametrize("chunks", [0, 1])
async def test_an_abandoned_stream_closes_the_connection_to_llama_cpp(chunks: int) -> None:
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b'data: {"content": "x", "tokens": [1], "stop": false}\n\n'
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    llama = FakeLlamaCpp()
    llama.answer = StreamingResponse(endless(), media_type="text/event-stream")
    async with running_engine(llama) as engine:
        answer = await engine.answer(request(RESPONSES, stream=True))
        iterator = aiter(answer.body)
        for _ in range(chunks):
            await anext(iterator)
        await answer.aclose()
        await answer.aclose()
        await asyncio.wait_for(ended.wait(), 20)


async def test_models_lists_the_one_model() -> None:
    async with running_engine(FakeLlamaCpp()) as engine:
        answer = await engine.models()
        listed = json.loads(b"".join([chunk async for chunk in answer.body]))
    assert [model["id"] for model in listed["data"]] == ["gemma"]


async def test_a_model_without_gemmas_markers_is_refused_by_the_missing_token() -> None:
    llama = FakeLlamaCpp()
    del llama.markers["</s>"]
    async with running_engine(llama) as engine:
        await engine.ready(20)
    del llama.markers["<start_of_turn>"]
    async with running_engine(llama) as engine:
        with pytest.raises(EngineError, match="has no token <start_of_turn>; use a model of the Gemma family"):
            await engine.ready(20)


async def test_a_server_without_context_length_or_tokens_is_an_error() -> None:
    llama = FakeLlamaCpp()
    llama.props_answer = {"default_generation_settings": {}}
    async with running_engine(llama) as engine:
        with pytest.raises(EngineError, match="does not tell its context length"):
            await engine.ready(20)
    llama.tokenize_answer = {}
    async with running_engine(llama) as engine:
        with pytest.raises(EngineError, match="answered /tokenize without tokens"):
            await engine.ready(20)


async def test_an_engine_that_was_not_started_says_so() -> None:
    with pytest.raises(EngineError, match="not started"):
        await LlamaCppEngine("http://127.0.0.1:1", model_name="m").answer(request(RESPONSES))
