"""Asks HTTP agents for their own metrics of a run: one ``POST <url>/aggregate_metrics``, sent in chunks (D113)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType

import httpx

from gym_ray.errors import AgentError

__all__ = ["AgentMetrics"]

_NO_SUCH_ROUTE = frozenset({404, 405, 501})
_MOST_ANSWER_BYTES = 256 << 20
_SHOWN = 300


class AgentMetrics:
    """Implements :data:`~gym_ray.rollouts.metrics.agent_entries.PostMetrics` over HTTP. Close it after use.

    Args:
        urls: Root URL of each agent that may be asked; all others have the default metrics.
        headers: Sent with each request, such as the run's token.
        timeout_s: How long an agent may be silent; aggregating many replies takes a while.
    """

    def __init__(self, urls: Mapping[str, str], headers: Mapping[str, str] | None = None, *, timeout_s: float = 600.0):
        self._urls = {name: url.rstrip("/") + "/aggregate_metrics" for name, url in urls.items()}
        # Agents are asked directly: a proxy of the environment is for the internet, not for the own nodes.
        timeout = httpx.Timeout(timeout_s, connect=10.0)
        self._client = httpx.Client(trust_env=False, timeout=timeout, headers=dict(headers or {}))

    def __enter__(self) -> AgentMetrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; safe to repeat."""
        self._client.close()

    def __call__(self, agent: str, chunks: Iterator[bytes]) -> bytes | None:
        """Send the request's body and return the answer's; None when the agent has no such route.

        Raises:
            AgentError: It could not be reached, answered another error, or answered too much.
        """
        url = self._urls.get(agent)
        if url is None:
            return None
        what = f"POST {url}"
        try:
            with self._client.stream(
                "POST", url, content=chunks, headers={"content-type": "application/json"}
            ) as answer:
                body = _read(answer, what)
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise AgentError("agent_request_failed", f"{what}: {type(error).__name__}: {error}") from error
        if answer.status_code in _NO_SUCH_ROUTE:
            return None
        if not answer.is_success:
            text = body.decode("utf-8", "replace")
            message = f"{what} answered {answer.status_code}: {text[:_SHOWN]}"
            raise AgentError("agent_request_failed", message, answer.status_code, text[:_SHOWN])
        return body


def _read(answer: httpx.Response, what: str) -> bytes:
    body = bytearray()
    for chunk in answer.iter_bytes():
        body += chunk
        if len(body) > _MOST_ANSWER_BYTES:
            raise AgentError("agent_request_failed", f"{what} answered more than {_MOST_ANSWER_BYTES} bytes")
    return bytes(body)
