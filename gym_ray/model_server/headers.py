"""Which headers pass through a model server, in each direction.

Credentials never pass: the client's key opens this server, not the engine, and an engine's cookie is not the client's.
``Accept-Encoding`` stays behind so that answers arrive readable, ``Content-Encoding`` stays honest (B11).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["JSON_HEADERS", "SSE_HEADERS", "answer_headers", "dialect_free_headers", "request_headers"]

JSON_HEADERS: Final = (("content-type", "application/json"),)
"""Headers of every whole answer that is written here."""
SSE_HEADERS: Final = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)
"""Headers of every stream that is written here (A134)."""

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NOT_TO_ENGINE = _HOP_BY_HOP | {
    "accept-encoding",
    "api-key",
    "authorization",
    "content-encoding",
    "content-length",
    "cookie",
    "expect",
    "host",
    "openai-organization",
    "openai-project",
    "x-api-key",
    "x-goog-api-key",
}
_OF_ONE_DIALECT = ("anthropic-", "openai-", "x-stainless-")
_NOT_TO_CLIENT = _HOP_BY_HOP | {"alt-svc", "date", "server", "set-cookie", "strict-transport-security"}


def request_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a client's headers that an engine may see, by lower-case name; repeated ones are joined by a comma."""
    pairs = [(name.lower(), value) for name, value in headers]
    hidden = _NOT_TO_ENGINE | _named_by_connection(pairs)
    kept: dict[str, str] = {}
    for name, value in pairs:
        if name not in hidden:
            kept[name] = f"{kept[name]}, {value}" if name in kept else value
    return kept


def dialect_free_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that mean the same in every dialect: betas and versions of one are none of another's."""
    return {name: value for name, value in headers.items() if not name.startswith(_OF_ONE_DIALECT)}


def answer_headers(headers: Iterable[tuple[str, str]], *, decoded: bool = False) -> list[tuple[str, str]]:
    """Return an engine's headers that a client may see.

    Args:
        headers: As the engine sent them.
        decoded: The body was decompressed on the way, so its coding and length no longer hold.
    """
    pairs = [(name.lower(), value) for name, value in headers]
    hidden = _NOT_TO_CLIENT | _named_by_connection(pairs)
    if decoded:
        hidden |= {"content-encoding", "content-length"}
    return [(name, value) for name, value in pairs if name not in hidden]


def _named_by_connection(pairs: Iterable[tuple[str, str]]) -> frozenset[str]:
    named = (item.strip().lower() for name, value in pairs if name == "connection" for item in value.split(","))
    return frozenset(named)
