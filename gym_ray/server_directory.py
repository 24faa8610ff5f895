"""Where the servers of a run are: every replica of every model server, every resources server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Endpoint", "ServerDirectory"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica: the node it runs on, "" when that is not known, and its root URL."""

    node: str
    url: str


@dataclass(frozen=True, slots=True)
class ServerDirectory:
    """Replicas by server name.

    Attributes:
        models: Model servers. One that lost all of its replicas has none until it gets another.
        resources: Resources servers.
    """

    models: Mapping[str, Sequence[Endpoint]]
    resources: Mapping[str, Sequence[Endpoint]]

    def model_urls(self, node: str, turn: int) -> dict[str, str]:
        """Return one root URL for each model server: a replica on ``node``, else the replica whose turn it is.

        A server without a replica is left out.

        Whoever takes the answer keeps it, so that all calls of a rollout meet one replica.
        """
        return {name: _choose(replicas, node, turn) for name, replicas in self.models.items() if replicas}

    def resource_urls(self, node: str, turn: int) -> dict[str, str]:
        """Return one root URL for each resources server, chosen like :meth:`model_urls`."""
        return {name: _choose(replicas, node, turn) for name, replicas in self.resources.items() if replicas}

    def with_models(self, more: Mapping[str, Sequence[Endpoint]]) -> ServerDirectory:
        """Return a directory with more replicas of its model servers, behind those that it has."""
        names = dict.fromkeys([*self.models, *more])
        models = {name: [*self.models.get(name, ()), *more.get(name, ())] for name in names}
        return ServerDirectory(models, self.resources)

    def without_nodes(self, nodes: Collection[str]) -> ServerDirectory:
        """Return a directory without what runs on some nodes; every server keeps its name."""
        models, resources = (
            {name: [item for item in replicas if item.node not in nodes] for name, replicas in servers.items()}
            for servers in (self.models, self.resources)
        )
        return ServerDirectory(models, resources)

    def to_json(self) -> dict[str, Any]:
        """Return the plain form that :meth:`from_json` reads."""
        return {
            kind: {name: [[item.node, item.url] for item in replicas] for name, replicas in servers.items()}
            for kind, servers in (("models", self.models), ("resources", self.resources))
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ServerDirectory:
        """Rebuild a directory from :meth:`to_json`.

        Raises:
            ValueError: The document has another shape.
        """
        try:
            models, resources = (
                {name: [Endpoint(str(node), str(url)) for node, url in pairs] for name, pairs in document[kind].items()}
                for kind in ("models", "resources")
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a server directory: {error!r}") from error
        return cls(models, resources)


def _choose(replicas: Sequence[Endpoint], node: str, turn: int) -> str:
    local = [item for item in replicas if item.node == node]
    candidates = local or replicas
    return candidates[turn % len(candidates)].url
