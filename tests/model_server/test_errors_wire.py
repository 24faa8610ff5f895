from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.errors import InvalidRequestError
from gym_ray.model_server.errors_wire import (
    converted_error_response,
    engine_error_response,
    invalid_request_response,
)

PROBLEMS: list[dict[str, Any]] = [
    {"type": "missing", "loc": ["body", "input"], "msg": "Field required", "input": {}},
    {"type": "extra_forbidden", "loc": ["body", "x"], "msg": "Extra inputs are not permitted", "input": "\ud83d"},
]


def content(response: Any) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    body: dict[str, Any] = json.loads(response.body)
    return body


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, None])
def test_an_invalid_request_carries_detail_and_openai_error(dialect: str | None) -> None:
    response = invalid_request_response(dialect, InvalidRequestError(PROBLEMS))
    assert response.status_code == 422
    body = content(response)
    assert body["detail"] == PROBLEMS
    assert body["error"] == {
        "message": "request body.input: Field required (and 1 more)",
        "type": "invalid_request_error",
        "param": None,
        "code": 422,
    }


def test_an_invalid_request_carries_detail_and_anthropic_error() -> None:
    body = content(invalid_request_response(MESSAGES, InvalidRequestError(PROBLEMS[:1])))
    assert body == {
        "detail": PROBLEMS[:1],
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "request body.input: Field required"},
    }


def test_an_engine_that_raises_for_the_schema_is_answered_alike() -> None:
    error = InvalidRequestError(PROBLEMS)
    assert engine_error_response(CHAT, error).body == invalid_request_response(CHAT, error).body


OPENAI_ERROR = {"error": {"message": "too long", "type": "BadRequestError", "param": "messages", "code": 400}}
ANTHROPIC_ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}, "request_id": "r"}


def converted(dialect: str, status: int, body: object) -> tuple[int, dict[str, Any]]:
    response = converted_error_response(dialect, status, json.dumps(body).encode(), "application/json")
    return response.status_code, content(response)


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES])
def test_an_anthropic_error_reaches_openai_clients(dialect: str) -> None:
    status, body = converted(dialect, 529, ANTHROPIC_ERROR)
    assert (status, body) == (
        529,
        {"error": {"message": "busy", "type": "overloaded_error", "param": None, "code": 529}},
    )


def test_an_openai_error_reaches_anthropic_clients() -> None:
    status, body = converted(MESSAGES, 400, OPENAI_ERROR)
    assert (status, body) == (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}})


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (429, "rate_limit_error", "rate_limit_error"),
        (400, "billing_error", "billing_error"),
        (429, "insufficient_quota", "rate_limit_error"),
        (500, "server_error", "api_error"),
        (503, None, "overloaded_error"),
    ],
)
def test_anthropic_clients_get_a_type_they_know(status: int, kind: str | None, expected: str) -> None:
    _, body = converted(MESSAGES, status, {"error": {"message": "m", "type": kind}})
    assert body["error"]["type"] == expected


def test_an_older_engine_puts_the_error_at_the_top() -> None:
    flat = {"object": "error", "message": "max context", "type": "BadRequestError", "param": None, "code": 400}
    _, body = converted(MESSAGES, 400, flat)
    assert body["error"] == {"type": "invalid_request_error", "message": "max context"}


def test_param_and_code_of_an_error_move_with_it() -> None:
    error = {"type": "error", "error": {"type": "rate_limit_error", "message": "m", "code": "tokens", "param": "p"}}
    _, body = converted(CHAT, 429, error)
    assert body == {"error": {"message": "m", "type": "rate_limit_error", "param": "p", "code": "tokens"}}


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (CHAT, json.dumps(OPENAI_ERROR, indent=1).encode()),
        (RESPONSES, b'{"error":{"message":"m"}}'),
        (MESSAGES, json.dumps(ANTHROPIC_ERROR, indent=2).encode()),
        (MESSAGES, b'{"detail": "no"}'),
        (MESSAGES, b'{"error": "text"}'),
        (MESSAGES, b'{"error": {"message": 5}}'),
        (CHAT, b'{"type": "error", "message": "flat"}'),
        (CHAT, b"[1]"),
        (CHAT, b"<html>\xff"),
        (MESSAGES, b""),
    ],
)
def test_anything_else_passes_byte_for_byte(dialect: str, body: bytes) -> None:
    response = converted_error_response(dialect, 502, body, "text/x-engine; charset=utf-8")
    assert response.body == body
    assert response.status_code == 502
    assert response.headers["content-type"] == "text/x-engine; charset=utf-8"


def test_no_media_type_is_made_up() -> None:
    assert "content-type" not in converted_error_response(CHAT, 502, b"x", None).headers


def test_sdks_read_both_shapes() -> None:
    """The official SDKs raise their own typed errors, with the message and the type that were sent."""

    def serve(body: bytes, status: int) -> httpx2.MockTransport:
        return httpx2.MockTransport(lambda _: httpx2.Response(status, content=body))

    invalid = bytes(invalid_request_response(RESPONSES, InvalidRequestError(PROBLEMS)).body)
    with httpx2.Client(transport=serve(invalid, 422)) as http:
        client = openai.OpenAI(api_key="k", base_url="http://127.0.0.1:1", http_client=http, max_retries=0)
        with pytest.raises(openai.UnprocessableEntityError, match=r"body\.input: Field required"):
            client.responses.create(model="m", input="hi")
    busy = converted_error_response(MESSAGES, 429, b'{"error":{"message":"slow","type":"tokens"}}', "application/json")
    with httpx2.Client(transport=serve(bytes(busy.body), 429)) as http:
        other = anthropic.Anthropic(api_key="k", base_url="http://127.0.0.1:1", http_client=http, max_retries=0)
        with pytest.raises(anthropic.RateLimitError, match="slow") as caught:
            other.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}])
    assert caught.value.type == "rate_limit_error"
