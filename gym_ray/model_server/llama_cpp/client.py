"""Talks to one llama.cpp HTTP server: tokens in, tokens out.

Only ``/health``, ``/props``, ``/tokenize``, ``/detokenize`` and ``/completion`` are used. Its chat routes are not: they
drop tools, tokens and the beginning-of-sequence token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

import httpx

from gym_ray import exact_json
from gym_ray.dialects.sse import EventScanner
from gym_ray.errors import EngineError, EngineTimeoutError, EngineUnavailableError, UnsupportedRequestError

__all__ = ["LlamaCppClient"]

_POLL_S: Final = 0.1
_CONNECT_TIMEOUT_S: Final = 5.0
_KEEP_ALIVE_S: Final = 2.0  # the server drops an idle connection after 5 s; a call must not meet one that is going
_CONTROL_CONNECTIONS: Final = 16
_BROKEN: Final = "the embedded model's server"


class LlamaCppClient:
    """Pooled, bounded HTTP connections to one server; short calls do not wait behind generations.

    Args:
        base_url: Root URL of the server.
        max_connections: Generations under way at the same time; others wait for a connection.
        request_timeout_s: Longest silence of the server, waiting in its line included.
    """

    def __init__(self, base_url: str, *, max_connections: int, request_timeout_s: float) -> None:
        self._url = base_url
        self._timeout_s = request_timeout_s
        self._generations = self._pool(max_connections)
        self._control = self._pool(_CONTROL_CONNECTIONS)

    def _pool(self, connections: int) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._url,
            limits=httpx.Limits(
                max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=_KEEP_ALIVE_S
            ),
            timeout=httpx.Timeout(self._timeout_s, connect=_CONNECT_TIMEOUT_S),
            trust_env=False,  # a proxy from the environment must never come between a server and its own engine
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._generations.aclose()
        await self._control.aclose()

    async def wait_healthy(self, timeout_s: float) -> None:
        """Return once the server answers.

        Raises:
            EngineUnavailableError: It does not within ``timeout_s``; the message holds the last cause.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                await self._call("GET", "/health", None)
            except EngineError as error:
                if time.monotonic() + _POLL_S >= deadline:
                    raise EngineUnavailableError(f"not ready after {timeout_s:g} s: {error.message}") from error
                await asyncio.sleep(_POLL_S)
            else:
                return

    async def context_tokens(self) -> int:
        """Return how many tokens one call may hold, prompt and answer together."""
        props = await self._call("GET", "/props", None)
        try:
            return int(props["default_generation_settings"]["n_ctx"])
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"{_BROKEN} does not tell its context length: {error!r}", 502) from error

    async def tokenize(self, pieces: Sequence[int | str], *, parse_special: bool = False) -> tuple[int, ...]:
        """Return the ids of texts and ids, each text tokenised on its own."""
        body = {"content": list(pieces), "add_special": False, "parse_special": parse_special}
        tokens = (await self._call("POST", "/tokenize", body)).get("tokens")
        if not isinstance(tokens, list):
            raise EngineError(f"{_BROKEN} answered /tokenize without tokens", 502)
        return tuple(tokens)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, control tokens by their names; what is no UTF-8 becomes replacement characters."""
        text = (await self._call("POST", "/detokenize", {"tokens": list(tokens)})).get("content")
        if not isinstance(text, str):
            raise EngineError(f"{_BROKEN} answered /detokenize without content", 502)
        return text

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of one completion that is not streamed."""
        return await self._call("POST", "/completion", body, self._generations)

    async def open_stream(self, body: Mapping[str, Any]) -> httpx.Response:
        """Start a streamed completion and return once its status is known; the caller closes the response.

        Raises:
            EngineError: The server refused it or could not be reached.
        """
        with self._errors():
            request = self._generations.build_request(
                "POST", "/completion", content=exact_json.dumps(body), headers=_JSON
            )
            response = await self._generations.send(request, stream=True)
            if response.status_code == httpx.codes.OK:
                return response
            try:
                await response.aread()
            finally:
                await response.aclose()
        raise _refused(response)

    async def events(self, response: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
        """Yield the objects of a streamed completion; the last one has ``stop`` true.

        Raises:
            EngineError: The stream broke, ended early, or the server reported an error in it.
        """
        scanner = EventScanner()
        with self._errors():
            async for chunk in response.aiter_raw():  # closed with the response, by its owner
                for event in scanner.feed(chunk):
                    payload = exact_json.loads_object(event.data)
                    if payload is None or "error" in payload:
                        raise EngineError(f"{_BROKEN} failed in mid-stream: {event.data[:300]!r}", 502)
                    yield payload
                    if payload.get("stop") is True:
                        return
        raise EngineUnavailableError(f"{_BROKEN} at {self._url} ended a stream early", 502)

    async def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, pool: httpx.AsyncClient | None = None
    ) -> dict[str, Any]:
        content = None if body is None else exact_json.dumps(body)
        with self._errors():
            response = await (pool or self._control).request(method, path, content=content, headers=_JSON)
        if response.status_code != httpx.codes.OK:
            raise _refused(response)
        answer = exact_json.loads_object(response.content)
        if answer is None:
            raise EngineError(f"{_BROKEN} answered {path} with no JSON object", 502)
        return answer

    def _errors(self) -> _HttpErrors:
        return _HttpErrors(self._url, self._timeout_s)


_JSON: Final = {"content-type": "application/json"}


class _HttpErrors:
    """Turns httpx errors raised inside a ``with`` block into engine errors that say what happened."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
            raise EngineUnavailableError(f"{_BROKEN} at {self._url} cannot be reached: {error}") from error
        if isinstance(error, httpx.TimeoutException):
            raise EngineTimeoutError(f"{_BROKEN} at {self._url} was silent for {self._timeout_s:g} s") from error
        if isinstance(error, httpx.HTTPError):
            cause = str(error) or type(error).__name__
            raise EngineUnavailableError(f"{_BROKEN} at {self._url} broke off: {cause}") from error


def _refused(response: httpx.Response) -> EngineError:
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return EngineUnavailableError(f"{_BROKEN} is loading its model", 503)
    text = response.content[:300].decode("utf-8", "replace")
    if response.status_code == httpx.codes.BAD_REQUEST and b"grammar" in response.content:
        return UnsupportedRequestError(f"the schema of a tool or of the response format has no grammar: {text}")
    return EngineError(f"{_BROKEN} answered {response.status_code}: {text}", 502)
