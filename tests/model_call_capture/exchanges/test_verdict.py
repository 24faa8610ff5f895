from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect

from gym_ray import exact_json
from gym_ray.dialects import DIALECT_BY_PATH
from gym_ray.dialects.reassembly import reassemble
from gym_ray.dialects.terminal import TerminalScanner
from gym_ray.errors import EngineError, EngineTimeoutError
from gym_ray.model_call_capture.exchanges import verdict

RECORDINGS = Path(__file__).parents[2] / "recordings"


def recordings() -> list[Any]:
    loaded = [(path, json.loads(path.read_text("utf-8"))) for path in sorted(RECORDINGS.glob("*/*.json"))]
    return [
        pytest.param(recording, id=f"{path.parent.name}-{path.stem}")
        for path, recording in loaded
        if recording["path"] in DIALECT_BY_PATH
    ]


@pytest.mark.parametrize("recording", recordings())
def test_what_real_engines_answer(recording: dict[str, Any]) -> None:
    dialect, body = DIALECT_BY_PATH[recording["path"]], recording["body"].encode()
    is_sse = recording["headers"]["content-type"].startswith("text/event-stream")
    scanner = TerminalScanner(dialect)
    if is_sse:
        scanner.feed(body)
    category = verdict.final_category(
        status=recording["status"],
        terminal=scanner.terminal,
        is_sse=is_sse,
        body=body,
        response=reassemble(dialect, body) if is_sse else exact_json.loads_object(body),
    )
    assert category == {200: None, 400: "client_error", 404: "not_found"}[recording["status"]]


def final(
    response: dict[str, Any] | None,
    *,
    status: int | None = 200,
    terminal: str | None = None,
    is_sse: bool = False,
    body: bytes = b"x",
    reason: str | None = None,
) -> str | None:
    return verdict.final_category(
        status=status, terminal=terminal, is_sse=is_sse, body=body, response=response, local_response_reason=reason
    )


@pytest.mark.parametrize(
    "response",
    [
        {"output": []},
        {"content": [], "type": "message"},
        {"choices": [{"index": 0}]},
        {"id": "resp_1", "status": "completed", "usage": {}},
        {"status": "incomplete", "output": [], "error": None},
    ],
)
def test_an_answer_is_a_success(response: dict[str, Any]) -> None:
    assert final(response) is None


@pytest.mark.parametrize(
    "response",
    [
        {"error": {"message": "no credit"}},
        {"error": "no credit"},
        {"object": "error", "message": "m"},
        {"type": "error", "error": {"type": "overloaded_error"}},
        {"status": "failed", "output": []},
        {"choices": [{"index": 0, "finish_reason": "error", "error": {"code": 502}}]},
    ],
)
def test_an_error_in_a_200_is_an_upstream_error(response: dict[str, Any]) -> None:
    assert final(response) == "upstream_error"
    assert final(response, is_sse=True, terminal="complete") == "upstream_error"


@pytest.mark.parametrize(
    "response",
    [{}, {"choices": []}, {"choices": None}, {"choices": [None]}, {"choices": [{}]}, {"status": "ok"}, None],
)
def test_a_200_that_is_no_answer_cannot_be_read(response: dict[str, Any] | None) -> None:
    assert final(response) == "capture_parse_error"


def test_empty_body() -> None:
    assert final(None, body=b"") == "capture_parse_error"
    assert final(None, body=b"", status=201) == "capture_parse_error"
    assert final(None, body=b"", status=204) is None
    assert final(None, body=b"", status=307) is None


def test_streams_need_their_terminal_event() -> None:
    partial = {"choices": [{"index": 0, "finish_reason": "stop"}]}
    assert final(partial, is_sse=True) == "stream_truncated"
    assert final(None, is_sse=True, body=b"") == "stream_truncated"
    assert final(partial, is_sse=True, terminal="complete") is None
    assert final(None, is_sse=True, terminal="complete") == "capture_parse_error"
    assert final(partial, is_sse=True, terminal="incomplete") == "incomplete"
    assert final(partial, is_sse=True, terminal="error") == "upstream_error"


def test_precedence() -> None:
    assert final({"error": "slow"}, status=429, terminal="error", is_sse=True) == "rate_limit"
    assert final(None, status=500, reason="context_length_exceeded") == "context_length_exceeded"
    assert final({"choices": [{"index": 0}]}, reason="empty_assistant") is None


def test_own_and_foreign_exceptions() -> None:
    assert verdict.category_from_exception(ClientDisconnect()) == "cancelled"
    assert verdict.category_from_exception(asyncio.CancelledError()) == "cancelled"
    assert verdict.category_from_exception(httpx.ReadTimeout("t")) == "timeout"
    assert verdict.category_from_exception(EngineTimeoutError("t")) == "timeout"
    assert verdict.category_from_exception(httpx.ConnectError("c")) == "connection"
    assert verdict.category_from_exception(BrokenPipeError()) == "connection"
    assert verdict.category_from_exception(ValueError("connection timeout")) == "exception"


def test_details_of_engine_and_httpx_errors() -> None:
    assert verdict.exception_details(EngineError("m", 429, b'{"error":1}')) == (429, b'{"error":1}')
    request = httpx.Request("POST", "http://127.0.0.1/v1/responses")
    read = httpx.HTTPStatusError("m", request=request, response=httpx.Response(503, content=b"busy"))
    assert verdict.exception_details(read) == (503, b"busy")
    unread = httpx.HTTPStatusError("m", request=request, response=httpx.Response(503, stream=httpx.ByteStream(b"x")))
    assert verdict.exception_details(unread) == (503, None)


def test_accessors_that_raise_are_no_failure() -> None:
    class Hostile(Exception):
        @property
        def status(self) -> int:
            raise RuntimeError("no")

        status_code = True
        response_content = 5

    assert verdict.exception_details(Hostile()) == (None, None)
