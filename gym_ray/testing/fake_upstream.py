"""An HTTP upstream that plays a script: for tests only.

Serve it with ``AppServer(FakeUpstream(...))``; it notices hung-up clients, so a test can see that one left.
"""

from __future__ import annotations

import gzip
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from gym_ray.dialects import DIALECT_BY_PATH
from gym_ray.model_server.disconnect import CancelOnDisconnect
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.testing.scripted_dialects import json_answer, stream_answer

__all__ = ["FakeUpstream", "UpstreamRequest", "gzipped", "recorded"]

_KEPT_REQUESTS = 1000
_MODELS = ScriptedAnswer(
    [b'{"object":"list","data":[{"id":"fake-model","object":"model","created":0,"owned_by":"t"}]}']
)


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """One request as it arrived.

    Attributes:
        method: HTTP method.
        path: Path without the query.
        query: Query string without the question mark.
        headers: Headers by lower-case name.
        body: The raw body.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


class FakeUpstream:
    """An ASGI application that speaks all three dialects at ``/v1/…``.

    Without a script it lists one model and answers ``text``, streamed when the body has ``"stream":true``.

    Args:
        script: Takes a request and returns its answer.
        text: What the default answers say.

    Attributes:
        requests: The last 1,000 requests, oldest first.
        open_answers: Requests that are being answered.
        most_open: The largest value that ``open_answers`` had.
        aborted: Requests whose client left before the end of the answer.
    """

    def __init__(
        self, script: Callable[[UpstreamRequest], ScriptedAnswer] | None = None, *, text: str = "hello there"
    ) -> None:
        self._script = script or self._default
        self._text = text
        self._app = CancelOnDisconnect(self._answer)
        self.requests: deque[UpstreamRequest] = deque(maxlen=_KEPT_REQUESTS)
        self.open_answers = 0
        self.most_open = 0
        self.aborted = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request."""
        if scope["type"] == "http":
            await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        seen = UpstreamRequest(
            request.method, request.url.path, request.url.query, dict(request.headers), await request.body()
        )
        self.requests.append(seen)
        self.open_answers += 1
        self.most_open = max(self.most_open, self.open_answers)
        ended = False
        try:
            await _send(self._script(seen), send)
            ended = True
        finally:
            self.open_answers -= 1
            self.aborted += not ended

    def _default(self, request: UpstreamRequest) -> ScriptedAnswer:
        if request.path == "/v1/models":
            return _MODELS
        dialect = DIALECT_BY_PATH.get(request.path)
        if dialect is None:
            return ScriptedAnswer([b'{"error":{"message":"no such path","type":"invalid_request_error"}}'], 404)
        build = stream_answer if b'"stream":true' in request.body.replace(b" ", b"") else json_answer
        return build(dialect, self._text)


def recorded(recording: Mapping[str, Any]) -> ScriptedAnswer:
    """Return the answer of a recording (``status``, ``headers``, ``body``, ``chunk_sizes``), cut as it was."""
    body = str(recording["body"]).encode()
    headers = {name.lower(): value for name, value in recording["headers"].items()}
    content_type = headers.pop("content-type")
    headers.pop("transfer-encoding", None)
    chunks, start = [], 0
    for size in recording["chunk_sizes"]:
        chunks.append(body[start : start + size])
        start += size
    if start != len(body):
        raise ValueError(f"the chunk sizes add up to {start}, the body has {len(body)} bytes")
    return ScriptedAnswer(chunks, recording["status"], content_type, list(headers.items()))


def gzipped(answer: ScriptedAnswer) -> ScriptedAnswer:
    """Return the same answer compressed, in one chunk."""
    headers = [*answer.headers, ("content-encoding", "gzip")]
    return replace(answer, chunks=[gzip.compress(answer.body)], headers=headers)


async def _send(answer: ScriptedAnswer, send: Send) -> None:
    await answer.started()
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.all_headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    async for chunk in answer.play():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
