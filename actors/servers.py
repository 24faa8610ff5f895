"""Start the servers of a run over the nodes, wait until each answers, and stop them."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from gym_ray.actors.calls import MOMENT_S, OnWait, get, offer
from gym_ray.actors.cluster import LOOPBACK, Node, alive_nodes, close_actors, pick_ports, start_actor
from gym_ray.actors.engine_host import EngineHost
from gym_ray.actors.environment import EnvironmentHost
from gym_ray.actors.inference_worker import InferenceWorkerHost
from gym_ray.actors.model_server import ModelServerHost
from gym_ray.errors import ClusterError, ServerStartError
from gym_ray.server_directory import Endpoint, ServerDirectory
from gym_ray.settings import HostedOptions, LocalModelOptions, ModelOptions, RunSettings, ServerSettings

__all__ = ["RunningServers", "start_servers"]


@dataclass(slots=True)
class RunningServers:
    """The servers of a run and where they are; :meth:`stop` ends them all."""

    directory: ServerDirectory
    hosts: dict[str, Any] = field(default_factory=dict)
    engines: dict[str, Any] = field(default_factory=dict)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Let requests under way end, then end every server, engines last; idempotent."""
        close_actors(list(self.hosts.values()), timeout_s)
        close_actors(list(self.engines.values()), timeout_s)
        self.hosts.clear()
        self.engines.clear()


@dataclass(frozen=True, slots=True)
class _Start:
    """An actor that was told to start."""

    kind: str
    server: str
    node_id: str
    handle: Any


class _Starter:
    """Creates the actors of one run; the caller waits for all of them together."""

    def __init__(
        self,
        settings: RunSettings,
        run_token: str,
        control_token: str | None,
        cache_dir: Path,
        nodes: Sequence[Node],
    ) -> None:
        self._settings, self._cache_dir, self._nodes = settings, cache_dir, nodes
        self._token, self._control_token = run_token, control_token
        # What stands for secrets in captures: all servers share its key, and restarted ones keep it.
        chosen = settings.capture_redaction.digest_key
        self._digest_key = secrets.token_bytes(32) if chosen is None else chosen.get_secret_value().encode()
        self.engines: dict[str, Any] = {}
        self._engine_urls: dict[str, str] = {}
        self.hosts: dict[str, Any] = {}
        self.waiting: dict[Any, _Start] = {}  # by the reference to its URL

    def start(self) -> None:
        for server in self._settings.servers.values():
            options = server.options
            if isinstance(options, ModelOptions):
                for node in self._replica_nodes(options.replicas):
                    self._model_server(server, options, node)
            elif isinstance(options, HostedOptions):
                self._environment(server, options, self._nodes[0])

    def _replica_nodes(self, replicas: int | str) -> Sequence[Node]:
        if isinstance(replicas, str):  # per_node
            return self._nodes
        return [self._nodes[index % len(self._nodes)] for index in range(replicas)]

    def _address(self, options: HostedOptions, node: Node) -> tuple[str, int]:
        host = options.host or (LOOPBACK if len(self._nodes) == 1 else node.ip)
        return host, options.port or pick_ports(node, host, 1)[0]

    def _model_server(self, server: ServerSettings, options: ModelOptions, node: Node) -> None:
        engine_url = self._engine(options, node) if isinstance(options, LocalModelOptions) else None
        host, port = self._address(options, node)
        name = f"model-{server.name}-{node.node_id[:8]}-{port}"
        tokens = (self._token, self._control_token, self._digest_key)
        worker_url = None if engine_url is None else self._worker(server, node, engine_url)
        arguments = (self._settings, server.name, host, port, *tokens, engine_url, worker_url)
        handle = start_actor(ModelServerHost, node, name, *arguments)
        self._track("models", server.name, node, name, handle)

    def _engine(self, options: LocalModelOptions, node: Node) -> str:
        name = f"engine-{options.model_name}-{node.node_id[:8]}"
        return self._beside(EngineHost, node, name, options, self._cache_dir)

    def _worker(self, server: ServerSettings, node: Node, engine_url: str) -> str | None:
        """Start what stages the tokens of a node's embedded engine; None where model servers keep them."""
        staging = self._settings.token_id_capture.staging
        if staging is None:
            return None
        name = f"worker-{server.name}-{node.node_id[:8]}"
        return self._beside(InferenceWorkerHost, node, name, server, staging, name, self._token, engine_url)

    def _beside(self, host: type, node: Node, name: str, *arguments: Any) -> str:
        """Start what serves a node's model servers over loopback, once; return its URL."""
        if name not in self.engines:
            port = pick_ports(node, LOOPBACK, 1)[0]
            handle = start_actor(host, node, name, *arguments, LOOPBACK, port)
            self.engines[name] = handle
            self._engine_urls[name] = f"http://{LOOPBACK}:{port}"
            self.waiting[handle.url.remote()] = _Start("engines", name, node.node_id, handle)
        return self._engine_urls[name]

    def _environment(self, server: ServerSettings, options: HostedOptions, node: Node) -> None:
        host, port = self._address(options, node)
        name = f"environment-{server.name}"
        handle = start_actor(EnvironmentHost, node, name, server, host, port)
        self._track("resources", server.name, node, name, handle)

    def _track(self, kind: str, server_name: str, node: Node, actor_name: str, handle: Any) -> None:
        self.hosts[actor_name] = handle
        self.waiting[handle.url.remote()] = _Start(kind, server_name, node.node_id, handle)


def start_servers(
    settings: RunSettings,
    *,
    run_token: str,
    cache_dir: Path,
    control_token: str | None = None,
    on_wait: OnWait | None = None,
) -> RunningServers:
    """Start every model server and resources server of the settings and wait until each one answers.

    Args:
        settings: The run's settings.
        run_token: Bearer token of the run's control routes.
        cache_dir: Where the embedded model's weights are assembled.
        control_token: Bearer by which a trainer reads the manifests of a run whose workers keep the tokens (C220).
        on_wait: Called every moment while servers start, with what is waited for; it may raise to give up.

    Returns:
        The running servers; what was started is stopped again when one of them fails.

    Raises:
        ServerStartError: One did not come up, or not in ``start_timeout_s``; the message names it and the cause.
    """
    starter = _Starter(settings, run_token, control_token, cache_dir, alive_nodes())
    running = RunningServers(ServerDirectory({}, {}), starter.hosts, starter.engines)  # grows as they are started
    try:
        starter.start()
        running.directory = _wait_for(starter, settings.start_timeout_s, on_wait or (lambda _: None))
    except BaseException:
        running.stop(timeout_s=2.0)
        raise
    return running


def _wait_for(starter: _Starter, timeout_s: float, on_wait: OnWait) -> ServerDirectory:
    found: dict[str, dict[str, list[Endpoint]]] = {"models": {}, "resources": {}, "engines": {}}
    until = time.monotonic() + timeout_s if timeout_s else math.inf
    pending = list(starter.waiting)
    while pending:
        done, pending = ray.wait(pending, num_returns=1, timeout=MOMENT_S)
        names = ", ".join(sorted({starter.waiting[ref].server for ref in pending}))
        if not done:
            reasons = _reasons([starter.waiting[ref].handle for ref in pending]) or names
            if time.monotonic() > until:
                raise ServerStartError(
                    f"not up after {timeout_s:g} s: {reasons}; {offer()}; raise start_timeout_s if they need longer"
                )
            on_wait(reasons)
            continue
        start = starter.waiting[done[0]]
        found[start.kind].setdefault(start.server, []).append(Endpoint(start.node_id, get(done[0], None)))
    return ServerDirectory(found["models"], found["resources"])


def _reasons(handles: Sequence[Any]) -> str:
    """Return what these actors say keeps them, "" when none of them says anything at once."""
    asked = [handle.health.remote() for handle in handles]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=MOMENT_S)
    said = set()
    for reference in answered:
        with suppress(ClusterError):  # an actor that died says so through its start
            said.add(get(reference, None).waits_for)
    return "; ".join(sorted(said - {""}))
