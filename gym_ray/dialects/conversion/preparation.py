"""From the body a client sent to the body a converter may trust, before anything is asked of an engine (A133, A184)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.conversion.namespaces import NamespaceMap, flatten
from gym_ray.dialects.conversion.sanitising import hoisted, sanitised
from gym_ray.dialects.conversion.schema import SCHEMAS, BodySchema, body_problems, invalid, problem
from gym_ray.dialects.conversion.schema.shapes import Problem

__all__ = ["PreparedRequest", "prepare"]

_STREAM_FIELDS = frozenset({"stream", "stream_options"})


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that keeps to its dialect's schema.

    Attributes:
        body: The client's own values, without ``stream`` and ``stream_options``; it may share parts with the client's
            body, so neither is to be changed.
        stream: The client wants server-sent events.
        include_usage: A streaming Chat client wants a usage chunk.
        namespaces: How to give tools their names back; empty on other dialects than Responses.
    """

    body: dict[str, Any]
    stream: bool
    include_usage: bool
    namespaces: NamespaceMap = field(default_factory=NamespaceMap)


def prepare(dialect: str, body: Mapping[str, Any], *, extensions: frozenset[str] = frozenset()) -> PreparedRequest:
    """Return the request in ``body``, checked.

    A plain Responses or Chat request is checked strictly, a streamed one after it was sanitised (A148-A152). Of a
    Messages request only ``stream`` is checked, as its converter reads the rest (A188). ``body`` is not changed.

    Args:
        dialect: ``chat``, ``responses`` or ``messages``.
        body: The request.
        extensions: Top-level fields that the server takes beside the dialect's own (A154, A172).

    Raises:
        InvalidRequestError: The body breaks the schema; one problem a field.
    """
    stream = body.get("stream")
    wrong: list[Problem] = []
    if stream is not None and not isinstance(stream, bool):
        wrong = [problem("literal_error", "Input should be False", stream, "stream", expected="False")]
    if dialect == MESSAGES:
        if wrong:
            raise invalid(wrong)
        return PreparedRequest(_without_stream(body, {"stream"}), stream is True, include_usage=False)
    schema = SCHEMAS[dialect]
    checked = sanitised(schema, body, extensions) if stream is True else _strict(schema, body, extensions, wrong)
    namespaces = NamespaceMap()
    if dialect == RESPONSES:
        checked, namespaces = flatten(checked)
        if stream is True:
            checked = hoisted(checked)
    wants_usage = dialect == CHAT and stream is True and _include_usage(body.get("stream_options"))
    return PreparedRequest(checked, stream is True, wants_usage, namespaces)


def _strict(
    schema: BodySchema, body: Mapping[str, Any], extensions: frozenset[str], wrong: list[Problem]
) -> dict[str, Any]:
    own = _without_stream(body, {"stream"})
    found = wrong + body_problems(schema.whole, own, extensions)
    if found:
        raise invalid(found)
    return _without_stream(own, _STREAM_FIELDS)


def _without_stream(body: Mapping[str, Any], names: frozenset[str] | set[str]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in names}


def _include_usage(options: object) -> bool:
    return isinstance(options, dict) and bool(options.get("include_usage"))
