"""Failures as clients of each dialect expect them: SDKs raise their own typed errors from these bodies.

Every text here may reach a client, so none is taken from an unexpected exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from gym_ray import exact_json
from gym_ray.dialects import MESSAGES
from gym_ray.dialects.failures import MESSAGES_ERROR_TYPES, messages_error_type, openai_error_type
from gym_ray.errors import EngineError, InvalidRequestError

__all__ = [
    "InvalidBodyError",
    "converted_error_response",
    "engine_error_response",
    "error_response",
    "invalid_body_response",
    "invalid_request_response",
]

_UNPROCESSABLE = 422


class InvalidBodyError(ValueError):
    """A request body is not a JSON object.

    Args:
        kind: Machine-readable kind, ``json_invalid`` or ``dict_type``.
        message: What is wrong.
        where: What follows ``body`` in the location, such as the offset of the first bad character.
    """

    def __init__(self, kind: str, message: str, where: Sequence[int | str] = ()) -> None:
        super().__init__(kind, message, where)
        self.kind, self.message, self.where = kind, message, where

    @classmethod
    def no_object(cls) -> InvalidBodyError:
        """Describe JSON of another kind."""
        return cls("dict_type", "Input should be a valid dictionary")

    @classmethod
    def from_json_error(cls, error: ValueError) -> InvalidBodyError:
        """Describe bytes that are no JSON."""
        if isinstance(error, json.JSONDecodeError):
            return cls("json_invalid", "JSON decode error", (error.pos,))
        if isinstance(error, UnicodeDecodeError):
            return cls("json_invalid", "JSON decode error", (error.start,))
        return cls("json_invalid", f"JSON decode error: {error}", (0,))


def error_response(dialect: str | None, status: int, message: str) -> Response:
    """Return ``message`` in the error shape of ``dialect``; OpenAI's shape outside of the three routes."""
    return _json(status, _error(dialect, status, message))


def invalid_body_response(dialect: str, problem: InvalidBodyError) -> Response:
    """Return the 422 that carries both ``detail`` and the dialect's own ``error`` (A183)."""
    detail = {"type": problem.kind, "loc": ["body", *problem.where], "msg": problem.message}
    text = f"request body: {problem.message}; a JSON object is needed"
    return _unprocessable(dialect, [detail], text)


def invalid_request_response(dialect: str | None, error: InvalidRequestError) -> Response:
    """Return the 422 for a body that breaks its schema: ``detail`` and the dialect's own ``error`` (A184, A185)."""
    more = len(error.problems) - 1
    text = f"request {error.message}" + (f" (and {more} more)" if more else "")
    return _unprocessable(dialect, error.problems, text)


def engine_error_response(dialect: str | None, error: EngineError) -> Response:
    """Return an engine's failure: its own body where it gave one, else its message in the dialect's shape."""
    if error.body:
        return Response(error.body, error.status, media_type="application/json")
    if isinstance(error, InvalidRequestError):
        return invalid_request_response(dialect, error)
    if error.status == _UNPROCESSABLE:
        return _unprocessable(dialect, [{"type": "value_error", "loc": ["body"], "msg": error.message}], error.message)
    return error_response(dialect, error.status, error.message)


def converted_error_response(client_dialect: str, status: int, body: bytes, content_type: str | None) -> Response:
    """Return an engine's error answer in the shape that a client of ``client_dialect`` reads.

    An error of the other family keeps its status, message and, where the client's family has such a thing, its type,
    param and code. Anything else, an error of the client's own family included, passes byte for byte.

    Args:
        client_dialect: The client's dialect.
        status: The engine's status.
        body: The engine's answer.
        content_type: Its media type, None when the engine named none.
    """
    answer = exact_json.loads_object(body)
    converted = None if answer is None else _of_other_family(client_dialect, status, answer)
    if converted is not None:
        return _json(status, converted)
    return Response(body, status, headers={"content-type": content_type} if content_type else None)


def _of_other_family(dialect: str, status: int, answer: Mapping[str, Any]) -> dict[str, Any] | None:
    if (answer.get("type") == "error") is (dialect == MESSAGES):
        return None
    # Older vLLM servers put the members of the error at the top.
    error = answer if answer.get("object") == "error" else answer.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None
    made = _error(dialect, status, error["message"])
    own, kind = made["error"], error.get("type")
    if dialect != MESSAGES:
        own["type"] = kind if isinstance(kind, str) else own["type"]
        own |= {name: error[name] for name in ("param", "code") if isinstance(error.get(name), str | int)}
    elif isinstance(kind, str) and kind in MESSAGES_ERROR_TYPES:
        own["type"] = kind
    return made


def _unprocessable(dialect: str | None, detail: Sequence[Mapping[str, Any]], message: str) -> Response:
    return _json(_UNPROCESSABLE, {"detail": list(detail), **_error(dialect, _UNPROCESSABLE, message)})


def _error(dialect: str | None, status: int, message: str) -> dict[str, Any]:
    if dialect == MESSAGES:
        return {"type": "error", "error": {"type": messages_error_type(status), "message": message}}
    return {"error": {"message": message, "type": openai_error_type(status), "param": None, "code": status}}


def _json(status: int, body: dict[str, Any]) -> Response:
    return Response(exact_json.dumps(body), status, media_type="application/json")
