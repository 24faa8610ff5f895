"""What every server's options share: references to other servers, and where a server listens."""

from __future__ import annotations

from typing import Any, Literal

from gym_ray.settings.fields import FrozenModel, Name, Port

__all__ = ["HostedOptions", "ModelServerRef", "ResourcesServerRef", "ServerOptions", "ServerRef", "ServerType"]

ServerType = Literal["responses_api_models", "responses_api_agents", "resources_servers"]


class ServerRef(FrozenModel):
    """A reference to another server: ``{type: resources_servers, name: mcqa}``."""

    type: ServerType
    name: Name


class ModelServerRef(ServerRef):
    """A reference that must lead to a model server."""

    type: Literal["responses_api_models"] = "responses_api_models"


class ResourcesServerRef(ServerRef):
    """A reference that must lead to a resources server."""

    type: Literal["resources_servers"] = "resources_servers"


class ServerOptions(FrozenModel):
    """What every server may say. These keys describe it and change nothing; they are kept for who reads them."""

    entrypoint: str | None = None
    domain: str | None = None
    description: str | None = None
    value: str | None = None
    verified: bool | None = None
    datasets: tuple[dict[str, Any], ...] = ()

    def references(self) -> dict[str, ServerRef]:
        """Return the servers that this one calls, by field."""
        return {name: ref for name, ref in self if isinstance(ref, ServerRef)}


class HostedOptions(ServerOptions):
    """Options of a server that listens.

    Attributes:
        host: Address to listen on; None lets the cluster choose (loopback on one node, the node's own on several).
        port: None takes a free one in 10001 to 20000.
    """

    host: Name | None = None
    port: Port | None = None
