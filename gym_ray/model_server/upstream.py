"""An engine behind HTTP: any server that speaks the dialects it is said to speak.

Requests go out as the client sent them, except for the model's name and the credentials; answers come back as they
are, chunk by chunk. Nothing is ever sent twice: only a connection that could not be opened is tried again. No text
that leaves this module holds the key.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import httpx

from gym_ray import exact_json
from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.errors import (
    EngineConnectionError,
    EngineError,
    EngineTimeoutError,
    EngineUnavailableError,
    SettingsError,
    UnsupportedRequestError,
)
from gym_ray.model_server.connections import Connections, Place
from gym_ray.model_server.engine import EngineAnswer, EngineRequest
from gym_ray.model_server.headers import answer_headers
from gym_ray.model_server.heavy_bodies import HeavyBody

__all__ = ["UpstreamEngine", "UpstreamLimits"]

_DECODED = frozenset({"gzip", "x-gzip", "deflate"})
_REDACTED = b"[redacted]"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_ENDPOINT_BY_DIALECT = {dialect: path.removeprefix("/v1") for path, dialect in DIALECT_BY_PATH.items()}


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """Bounds of the connections to one upstream.

    Attributes:
        max_connections: Requests under way at once; more wait for a free connection.
        connect_timeout_s: To open one connection.
        read_timeout_s: Without a byte from the upstream.
        total_timeout_s: From the request to the last byte, waiting for a connection included.
    """

    max_connections: int = 1024
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 600.0
    total_timeout_s: float = 3600.0


class UpstreamEngine:
    """Implements ``Engine`` over pooled HTTP connections.

    Args:
        base_url: URL that ends in the API's version, such as ``https://host/v1``.
        api_key: Key that replaces the client's; None or "" sends none.
        model_name: Replaces the request's ``model``; None or "" leaves it as it is.
        dialects: Dialects that the upstream speaks.
        limits: Connections and timeouts.
        key_setting: Name of the setting that holds the key, for messages.
        default_headers: Sent where the client sends none of that name; names are lower-case.

    Raises:
        SettingsError: The key cannot be sent in an HTTP header.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        model_name: str | None = None,
        dialects: Iterable[str] = (RESPONSES, CHAT),
        limits: UpstreamLimits | None = None,
        key_setting: str = "policy_api_key",
        default_headers: Mapping[str, str] | None = None,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._api_key = _sendable_key(api_key, key_setting)
        self._model_name = model_name or None
        self._dialects = frozenset(dialects)
        self._limits = limits or UpstreamLimits()
        self._key_setting = key_setting
        self._default_headers = dict(default_headers or {})
        self._opened: Connections | None = None

    @property
    def dialects(self) -> frozenset[str]:
        """Dialects that the upstream speaks."""
        return self._dialects

    @property
    def token_dialects(self) -> frozenset[str]:
        """None: an arbitrary upstream is not asked for tokens; what its answers carry by themselves is captured."""
        return frozenset()

    async def start(self) -> None:
        """Open the connection pools; no request is made."""
        limits = self._limits
        timeout = httpx.Timeout(limits.read_timeout_s, connect=limits.connect_timeout_s, pool=None)
        self._opened = Connections(limits.max_connections, timeout)

    async def ready(self, timeout_s: float, on_wait: Callable[[str], None] | None = None) -> None:
        """Return once ``GET …/models`` is answered by anything but a server error.

        Raises:
            EngineUnavailableError: The key was refused, or nothing answered in time; the message has the cause.
        """
        deadline = _now() + timeout_s
        pause_s = _FIRST_PAUSE_S
        probe = self._connections.probe
        cause = "no answer to GET /models"
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    response = await probe.get(f"{self._base_url}/models", headers=self._credentials(CHAT))
                cause = f"it answered {_status_text(response.status_code)}"
            except TimeoutError:
                raise EngineUnavailableError(self._not_ready(timeout_s, cause)) from None
            except (httpx.HTTPError, httpx.InvalidURL) as exc:
                cause = self._translate(exc).message
            else:
                self._check_key(response.status_code)
                if response.status_code < 500:
                    return
            if _now() + pause_s >= deadline:
                raise EngineUnavailableError(self._not_ready(timeout_s, cause))
            if on_wait is not None:
                on_wait(f"{self._where} is not ready: {cause}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def answer(self, request: EngineRequest) -> EngineAnswer:
        """Send one request; return when status and headers are known.

        Raises:
            EngineUnavailableError: No connection could be opened.
            EngineTimeoutError: No answer in time.
            UnsupportedRequestError: The body nests too deeply for the model's name to be replaced (400).
            EngineError: The connection broke, or the upstream redirects.
        """
        query = f"?{request.query}" if request.query else ""
        url = f"{self._base_url}{_ENDPOINT_BY_DIALECT[request.dialect]}{query}"
        return await self._exchange("POST", url, self._headers(request), await self._body(request))

    async def models(self) -> EngineAnswer:
        """Answer ``GET /v1/models`` from the upstream.

        Raises:
            EngineError: As :meth:`answer`.
        """
        return await self._exchange("GET", f"{self._base_url}/models", self._credentials(CHAT), None)

    async def count_tokens(self, request: EngineRequest) -> EngineAnswer:
        """Answer ``POST /v1/messages/count_tokens`` from the upstream.

        Raises:
            UnsupportedRequestError: The upstream does not speak the Messages dialect; status 501.
            EngineError: As :meth:`answer`.
        """
        if MESSAGES not in self._dialects:
            raise UnsupportedRequestError(f"{self._where} does not speak the messages dialect: no count_tokens", 501)
        url = f"{self._base_url}/messages/count_tokens"
        return await self._exchange("POST", url, self._headers(request), await self._body(request))

    async def post_at_root(self, path: str, content: bytes) -> EngineAnswer:
        """Send JSON to a route beside the versioned ones, such as ``/tokenize``.

        Raises:
            EngineError: As :meth:`answer`.
        """
        headers = {**self._credentials(CHAT), "content-type": "application/json"}
        return await self._exchange("POST", f"{self._base_url.removesuffix('/v1')}{path}", headers, content)

    async def aclose(self) -> None:
        """Close the pool; idempotent."""
        connections, self._opened = self._opened, None
        if connections is not None:
            await connections.aclose()

    @property
    def _connections(self) -> Connections:
        if self._opened is None:
            raise EngineUnavailableError(f"the client of {self._where} is not started")
        return self._opened

    async def _exchange(self, method: str, url: str, headers: dict[str, str], content: bytes | None) -> EngineAnswer:
        deadline = _now() + self._limits.total_timeout_s
        raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        try:
            async with asyncio.timeout_at(deadline):
                place = await self._connections.take()
                response = await _send(place, method, url, raw_headers, content)
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL) as exc:
            raise self._translate(exc) from exc
        body = _Body(self, response, place, deadline)
        if response.has_redirect_location:
            await body.aclose()
            raise EngineError(f"{self._where} redirects to {_shown(response)}: give the final address as base URL")
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw]
        if response.status_code < 400 or self._api_key is None:
            return EngineAnswer(response.status_code, answer_headers(pairs, decoded=body.decoded), body, body.aclose)
        # Upstreams repeat a key they refuse, and the client has no right to this one (B67). The length may change.
        kept = [pair for pair in answer_headers(pairs, decoded=body.decoded) if pair[0] != "content-length"]
        return EngineAnswer(response.status_code, kept, _without(self._api_key.encode(), body), body.aclose)

    async def _body(self, request: EngineRequest) -> bytes:
        if self._model_name is None or request.body.get("model") == self._model_name:
            return request.raw
        try:
            if isinstance(request.body, HeavyBody):
                return await request.body.replaced({"model": self._model_name})
            return exact_json.dumps({**request.body, "model": self._model_name})
        except ValueError as exc:
            raise UnsupportedRequestError(f"request body: {exc}; the model's name could not be replaced") from None

    def _headers(self, request: EngineRequest) -> dict[str, str]:
        added = {**self._credentials(request.dialect), "content-type": "application/json"}
        return {**self._default_headers, **request.headers, **added}

    def _credentials(self, dialect: str) -> dict[str, str]:
        if self._api_key is None:
            return {}
        headers = {"authorization": f"Bearer {self._api_key}"}
        return {**headers, "x-api-key": self._api_key} if dialect == MESSAGES else headers

    def _check_key(self, status: int) -> None:
        if status in (401, 403):
            what = "refused the key" if self._api_key else "wants a key, and none is set"
            raise EngineUnavailableError(f"{self._where} {what} ({_status_text(status)}): check {self._key_setting}")

    @property
    def _where(self) -> str:
        address = self._base_url.partition("://")[2].rpartition("@")[2]
        return f"the upstream at {self._base_url.partition('://')[0]}://{address}"

    def _not_ready(self, timeout_s: float, cause: str) -> str:
        return f"{self._where} is not ready after {timeout_s:g} s: {cause}"

    def _translate(self, exc: Exception) -> EngineError:
        where, limits = self._where, self._limits
        match exc:
            case httpx.ConnectTimeout():
                return EngineUnavailableError(f"no connection to {where} within {limits.connect_timeout_s:g} s")
            case httpx.ConnectError():
                return EngineUnavailableError(f"no connection to {where}: {_reason(exc)}")
            case httpx.TimeoutException():
                return EngineTimeoutError(f"nothing came from {where} for {limits.read_timeout_s:g} s")
            case TimeoutError():
                return EngineTimeoutError(f"{where} did not finish within {limits.total_timeout_s:g} s")
            case httpx.InvalidURL() | httpx.UnsupportedProtocol():
                return EngineUnavailableError(f"{where} has no usable URL; give one like http://host:port/v1")
            case httpx.DecodingError():
                return EngineError(f"{where} sent a body that cannot be decompressed")
            case _:
                return EngineConnectionError(f"the connection to {where} broke ({type(exc).__name__})")


class _Body:
    """The chunks of one answer, with its deadline; failures are the engine's own."""

    def __init__(self, engine: UpstreamEngine, response: httpx.Response, place: Place, deadline: float) -> None:
        self._engine = engine
        self._response = response
        self._place = place
        self._deadline = deadline
        self.decoded = response.headers.get("content-encoding", "").strip().lower() in _DECODED
        self._chunks = response.aiter_bytes() if self.decoded else response.aiter_raw()

    def __aiter__(self) -> _Body:
        return self

    async def __anext__(self) -> bytes:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await anext(self._chunks)
        except (TimeoutError, httpx.HTTPError) as exc:
            raise self._engine._translate(exc) from exc  # noqa: SLF001 - the two are one

    async def aclose(self) -> None:
        try:
            await self._response.aclose()
        finally:
            self._place.give_back()


async def _without(secret: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the bytes with every occurrence of ``secret`` replaced, also one that chunks cut apart."""
    kept = b""
    async for chunk in chunks:
        kept = (kept + chunk).replace(secret, _REDACTED)
        ready = max(0, len(kept) - len(secret) + 1)
        if ready:
            yield kept[:ready]
            kept = kept[ready:]
    if kept:
        yield kept


async def _send(
    place: Place, method: str, url: str, headers: list[tuple[bytes, bytes]], content: bytes | None
) -> httpx.Response:
    try:
        request = place.client.build_request(method, url, headers=headers, content=content)
        return await place.client.send(request, stream=True)
    except BaseException:
        place.give_back()
        raise


def _shown(response: httpx.Response) -> str:
    try:
        target = httpx.URL(response.headers["location"])
    except httpx.InvalidURL:
        return "an address that is no URL"
    return str(target.copy_with(userinfo=b"", query=None))


def _reason(exc: BaseException) -> str:
    """Return the operating system's own words for a failed connection; the client's text does not have them."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)  # below 0: a name's error
        cause = cause.__cause__ or cause.__context__
    return str(exc)


def _sendable_key(api_key: str | None, key_setting: str) -> str | None:
    key = (api_key or "").strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable()):
        raise SettingsError("settings", key_setting, "holds a character that an HTTP header cannot carry")
    return key


def _status_text(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _now() -> float:
    return asyncio.get_running_loop().time()
