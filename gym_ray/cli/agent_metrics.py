"""Asks whoever scored a run's rollouts for metrics of its own: ``POST /aggregate_metrics`` (D112, D113)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import httpx

from gym_ray.agents.delivery import RUN_TOKEN_HEADER
from gym_ray.errors import AgentError
from gym_ray.rollouts.metrics.agent_entries import PostMetrics
from gym_ray.server_directory import ServerDirectory
from gym_ray.settings import HttpAgentOptions, RunSettings

__all__ = ["ask_agents", "metrics_urls"]

_NO_SUCH_ROUTE = frozenset({404, 405, 501})
_MOST_ANSWER_BYTES = 256 << 20
_SHOWN = 300
_TIMEOUT = httpx.Timeout(600.0, connect=10.0)
"""An agent may compute for a while on all its rollouts; one that accepts nothing is gone."""


def metrics_urls(settings: RunSettings, directory: ServerDirectory) -> dict[str, str]:
    """Return who is asked, by agent: an HTTP agent itself, any other the resources server that scores its rollouts."""
    resources = directory.resource_urls("", 0)
    urls: dict[str, str] = {}
    for name, agent in settings.servers_of("responses_api_agents").items():
        if isinstance(agent.options, HttpAgentOptions):
            urls[name] = str(agent.options.base_url).rstrip("/")
            continue
        for reference in agent.options.references().values():
            if reference.type == "resources_servers" and reference.name in resources:
                urls[name] = resources[reference.name]
    return urls


def ask_agents(urls: Mapping[str, str], *, run_token: str | None = None) -> PostMetrics:
    """Return what asks an agent for its metrics; it raises :class:`AgentError` where an agent gives no usable answer.

    Args:
        urls: Root URL of each agent that may be asked; all others have the default metrics.
        run_token: Sent with each request, as with every run, None for nothing.
    """
    headers = {"content-type": "application/json", **({RUN_TOKEN_HEADER: run_token} if run_token else {})}

    def post(agent: str, chunks: Iterator[bytes]) -> bytes | None:
        if agent not in urls:
            return None
        what = f"POST {urls[agent]}/aggregate_metrics"
        try:
            # Asked directly: a proxy of the environment is for the internet, not for the own nodes.
            with httpx.Client(timeout=_TIMEOUT, trust_env=False) as client:
                answer = client.send(
                    client.build_request("POST", what.removeprefix("POST "), content=chunks, headers=headers),
                    stream=True,
                )
                body = _read(answer, what)
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise AgentError("agent_request_failed", f"{what}: {type(error).__name__}: {error}") from error
        if answer.status_code in _NO_SUCH_ROUTE:
            return None
        if not answer.is_success:
            text = body[:_SHOWN].decode("utf-8", "replace")
            problem = f"{what} answered {answer.status_code}: {text}"
            raise AgentError("agent_request_failed", problem, answer.status_code, text)
        return body

    return post


def _read(answer: httpx.Response, what: str) -> bytes:
    body = bytearray()
    for chunk in answer.iter_bytes():
        body += chunk
        if len(body) > _MOST_ANSWER_BYTES:
            raise AgentError("agent_request_failed", f"{what} answered more than {_MOST_ANSWER_BYTES} bytes")
    return bytes(body)
