"""What an agent is given beside its row: URLs that carry the rollout's id, a client, a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from gym_ray.agents.failures import AGENT_RUN_ERROR
from gym_ray.agents.resources_session import ResourcesSession
from gym_ray.correlation import AgentUrls, apply_rollout_prefix
from gym_ray.errors import AgentError

__all__ = ["NO_API_KEY", "RunContext", "ServerUrls"]

NO_API_KEY = "unused"
"""Key to hand to SDKs that insist on one while the model servers ask for none."""


@dataclass(frozen=True, slots=True)
class ServerUrls:
    """Root URL by server name, as this node should use them.

    Attributes:
        models: Model servers.
        resources: Resources servers.
    """

    models: Mapping[str, str]
    resources: Mapping[str, str]

    def with_newer(self, urls: ServerUrls) -> ServerUrls:
        """Return the URLs of ``urls``, and these of servers that it does not name."""
        return ServerUrls({**self.models, **urls.models}, {**self.resources, **urls.resources})


@dataclass(frozen=True, slots=True)
class RunContext:
    """One attempt's surroundings. Calls through these URLs are captured under ``rollout_id``.

    Attributes:
        rollout_id: Id of the attempt (D20).
        http: Shared asynchronous client; it keeps no cookies between requests.
        api_key: Key for the model servers; never empty, because SDKs insist on one.
        urls: Root URLs of the servers.
        connect_patience_s: How long to go on trying while a server accepts no connection.
        resources: The session at the agent's resources server, None without one.
        token_capture: The attempt's model calls are for training: their exact tokens are captured as well (A28).
        observability_enabled: The attempt's model calls are captured, so what the agent observed can be joined to them.
    """

    rollout_id: str
    http: httpx.AsyncClient
    api_key: str
    urls: ServerUrls
    connect_patience_s: float = 30.0
    resources: ResourcesSession | None = None
    token_capture: bool = False
    observability_enabled: bool = False

    def base_url(self, name: str) -> str:
        """Return ``http://host:port/ng-rollout/<id>/v1`` of a model server, as the OpenAI SDK wants it (A30).

        Behind the id stands ``/training-token-capture`` where ``token_capture`` is set; here and in :meth:`root_url`.

        Raises:
            AgentError: No model server has that name.
        """
        self._known(self.urls.models, name, "model server")
        return AgentUrls(True, self.token_capture, self.urls.models).resolve_model_base_url(name, self.rollout_id)

    def root_url(self, name: str) -> str:
        """Return ``http://host:port/ng-rollout/<id>`` of a model server, as the Anthropic SDK wants it (A27).

        Raises:
            AgentError: No model server has that name.
        """
        root = self._known(self.urls.models, name, "model server")
        return apply_rollout_prefix(root, self.rollout_id, self.token_capture)

    def resources_url(self, name: str) -> str:
        """Return ``http://host:port/ng-rollout/<id>`` of a resources server.

        Raises:
            AgentError: No resources server has that name.
        """
        return apply_rollout_prefix(self._known(self.urls.resources, name, "resources server"), self.rollout_id)

    def open_session(self, name: str) -> ResourcesSession:
        """Return a new, not yet seeded session at a resources server.

        Raises:
            AgentError: No resources server has that name.
        """
        return ResourcesSession(self.http, name, self.resources_url(name), connect_patience_s=self.connect_patience_s)

    @staticmethod
    def _known(urls: Mapping[str, str], name: str, kind: str) -> str:
        if name not in urls:
            known = ", ".join(sorted(urls)) or "none"
            raise AgentError(AGENT_RUN_ERROR, f"no {kind} is named {name!r}; known: {known}")
        return urls[name]
