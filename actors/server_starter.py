"""Start the actors of servers: which runs where, on which port, with what beside it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from gym_ray.actors.calls import OnWait
from gym_ray.actors.capture_writer import CaptureWriterHost
from gym_ray.actors.cluster import LOOPBACK, Node, pick_ports, start_actor
from gym_ray.actors.engine_host import EngineHost
from gym_ray.actors.environment import EnvironmentHost
from gym_ray.actors.inference_worker import InferenceWorkerHost
from gym_ray.actors.model_server import ModelServerHost
from gym_ray.settings import HostedOptions, LocalModelOptions, ModelOptions, RunSettings, ServerSettings

__all__ = ["ServerStarter", "ServerTokens", "Started"]


@dataclass(frozen=True, slots=True)
class ServerTokens:
    """What callers of a run's servers must send.

    Attributes:
        run: Bearer of the run's routes.
        control: Bearer of the routes of a trainer (C220), None without them.
    """

    run: str
    control: str | None


@dataclass(frozen=True, slots=True)
class Started:
    """An actor that was told to start."""

    kind: str
    server: str
    node_id: str
    name: str
    handle: Any


class ServerStarter:
    """Creates the actors of one run's servers; the caller waits for them, and ends them.

    Attributes:
        waiting: What was told to start and is not known to be up, by the reference to its URL.
    """

    def __init__(
        self,
        settings: RunSettings,
        tokens: ServerTokens,
        cache_dir: Path,
        namespace: str | None,
        weights: tuple[str, str] | None = None,
    ) -> None:
        self._settings, self._tokens, self._cache_dir, self._namespace = settings, tokens, cache_dir, namespace
        self._weights = weights
        # What stands for secrets in captures: all servers share its key, and restarted ones keep it.
        chosen = settings.capture_redaction.digest_key
        self._digest_key = secrets.token_bytes(32) if chosen is None else chosen.get_secret_value().encode()
        self._beside_urls: dict[str, str] = {}
        self._capture_writer: tuple[str, str] | None = None
        self.waiting: dict[Any, Started] = {}
        self.on_wait: OnWait | None = None

    def start_all(self, nodes: Sequence[Node], here: Node) -> None:
        """Start every server of the settings: model servers over ``nodes``, what holds sessions ``here``."""
        self._start_capture_writer(here)
        for server in self._settings.servers.values():
            options = server.options
            if isinstance(options, ModelOptions):
                for node in _spread(options.replicas, nodes):
                    self._model_server(server, options, node)
            elif isinstance(options, HostedOptions):
                self._environment(server, options, here)

    def start_on(self, node: Node) -> None:
        """Start what runs on every node on one that joined."""
        for server in self._settings.servers.values():
            if isinstance(server.options, ModelOptions) and isinstance(server.options.replicas, str):  # per_node
                self._model_server(server, server.options, node)

    def start_replica(self, name: str, node: Node) -> None:
        """Start one more replica of a model server."""
        server = self._settings.servers[name]
        if isinstance(server.options, ModelOptions):
            self._model_server(server, server.options, node)

    def forget(self, name: str) -> None:
        """Note that an actor is gone, so that another one of its name may start."""
        self._beside_urls.pop(name, None)

    def wanted(self) -> dict[str, int]:
        """Return how many replicas each model server has by its settings; those with one for each node left out."""
        found = {}
        for server in self._settings.servers.values():
            if isinstance(server.options, ModelOptions) and isinstance(server.options.replicas, int):
                found[server.name] = server.options.replicas
        return found

    def _address(self, options: HostedOptions, node: Node) -> tuple[str, int]:
        # A node of a cluster that others can join has an address that others can reach; a local one has loopback.
        host = options.host or node.ip
        return host, options.port or pick_ports(node, host, 1, on_wait=self.on_wait)[0]

    def _model_server(self, server: ServerSettings, options: ModelOptions, node: Node) -> None:
        engine_url = self._engine(options, node) if isinstance(options, LocalModelOptions) else None
        host, port = self._address(options, node)
        name = f"model-{server.name}-{node.node_id[:8]}-{port}"
        tokens = (self._tokens.run, self._tokens.control, self._digest_key)
        worker_url = None if engine_url is None else self._worker(server, node, engine_url)
        arguments = (
            self._settings,
            server.name,
            host,
            port,
            *tokens,
            engine_url,
            worker_url,
            self._capture_writer,
            self._weights,
        )
        self._track("models", server.name, node, name, ModelServerHost, *arguments)

    def _start_capture_writer(self, node: Node) -> None:
        """Start what writes captures for servers without the mount, where they are told to have none."""
        location = self._settings.capture_location
        if location is None or self._settings.model_call_capture_writer != "hosted":
            return
        name = "capture-writer"
        handle = start_actor(CaptureWriterHost, node, name, location, namespace=self._namespace)
        self.waiting[handle.ready.remote()] = Started("engines", name, node.node_id, name, handle)
        self._capture_writer = name, self._namespace or ray.get_runtime_context().namespace

    def _engine(self, options: LocalModelOptions, node: Node) -> str:
        name = f"engine-{options.model_name}-{node.node_id[:8]}"
        return self._beside(EngineHost, node, name, options, self._cache_dir)

    def _worker(self, server: ServerSettings, node: Node, engine_url: str) -> str | None:
        """Start what stages the tokens of a node's embedded engine; None where model servers keep them."""
        staging = self._settings.token_id_capture.staging
        if staging is None:
            return None
        name = f"worker-{server.name}-{node.node_id[:8]}"
        return self._beside(InferenceWorkerHost, node, name, server, staging, name, self._tokens.run, engine_url)

    def _beside(self, host: type, node: Node, name: str, *arguments: Any) -> str:
        """Start what serves a node's model servers over loopback, once; return its URL."""
        if name not in self._beside_urls:
            port = pick_ports(node, LOOPBACK, 1, on_wait=self.on_wait)[0]
            self._track("engines", name, node, name, host, *arguments, LOOPBACK, port)
            self._beside_urls[name] = f"http://{LOOPBACK}:{port}"
        return self._beside_urls[name]

    def _environment(self, server: ServerSettings, options: HostedOptions, node: Node) -> None:
        host, port = self._address(options, node)
        name = f"environment-{server.name}"
        self._track("resources", server.name, node, name, EnvironmentHost, server, host, port)

    def _track(self, kind: str, server: str, node: Node, name: str, host: type, *arguments: Any) -> None:
        handle = start_actor(host, node, name, *arguments, namespace=self._namespace)
        self.waiting[handle.url.remote()] = Started(kind, server, node.node_id, name, handle)


def _spread(replicas: int | str, nodes: Sequence[Node]) -> Sequence[Node]:
    if isinstance(replicas, str):  # per_node
        return nodes
    return [nodes[index % len(nodes)] for index in range(replicas)]
