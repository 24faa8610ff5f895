"""Asks whoever scored a run's rollouts for metrics of its own: ``POST /aggregate_metrics`` (D112, D113)."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from gym_ray.errors import AgentError
from gym_ray.rollouts.metrics.agent_entries import PostMetrics
from gym_ray.server_directory import ServerDirectory
from gym_ray.settings import HttpAgentOptions, RunSettings

__all__ = ["ask_agents"]

_NO_SUCH_ROUTE = frozenset({404, 405, 501})
_TIMEOUT = httpx.Timeout(10.0, read=600.0, write=600.0)
"""An agent may compute for a while on all its rollouts; one that accepts nothing is gone."""


def ask_agents(settings: RunSettings, directory: ServerDirectory) -> PostMetrics:
    """Return what asks an agent: an HTTP agent itself, any other the resources server that scores its rollouts."""
    resources = directory.resource_urls("", 0)
    urls: dict[str, str] = {}
    for name, agent in settings.servers_of("responses_api_agents").items():
        if isinstance(agent.options, HttpAgentOptions):
            urls[name] = str(agent.options.base_url).rstrip("/")
            continue
        for reference in agent.options.references().values():
            if reference.type == "resources_servers" and reference.name in resources:
                urls[name] = resources[reference.name]

    def post(agent: str, body: Iterator[bytes]) -> bytes | None:
        if agent not in urls:
            return None
        url = f"{urls[agent]}/aggregate_metrics"
        # Servers are asked directly: a proxy of the environment is for the internet, not for the own nodes.
        with httpx.Client(timeout=_TIMEOUT, trust_env=False) as client:
            answer = client.post(url, content=body, headers={"content-type": "application/json"})
        if answer.status_code in _NO_SUCH_ROUTE:
            return None
        if not answer.is_success:
            problem = f"POST {url} answered {answer.status_code}"
            raise AgentError("agent_request_failed", problem, answer.status_code, answer.text[:300])
        return answer.content

    return post
