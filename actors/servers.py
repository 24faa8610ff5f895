"""Start the servers of a run over the nodes, wait until each answers, follow the nodes, and stop them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray

from gym_ray.actors.calls import MOMENT_S, OnWait, get, offer
from gym_ray.actors.cluster import Node, close_actors, local_node, working_nodes
from gym_ray.actors.server_starter import ServerStarter, ServerTokens, Started
from gym_ray.errors import ClusterError, ServerStartError
from gym_ray.server_directory import Endpoint, ServerDirectory
from gym_ray.settings import RunSettings

__all__ = ["RunningServers", "start_servers"]


class RunningServers:
    """The servers of a run and where they are; :meth:`stop` ends them all.

    One thread at a time may change them.

    Attributes:
        directory: Where they are now.
        nodes: Ids of the nodes that were given their servers.
    """

    def __init__(self, starter: ServerStarter, start_timeout_s: float) -> None:
        self._starter, self._start_timeout_s = starter, start_timeout_s
        self._started: dict[str, Started] = {}
        self.directory = ServerDirectory({}, {})
        self.nodes: set[str] = set()

    @property
    def hosts(self) -> dict[str, Any]:
        """Handles of the servers by actor name."""
        return {start.name: start.handle for start in self._started.values() if start.kind != "engines"}

    @property
    def engines(self) -> dict[str, Any]:
        """Handles of what serves them on their own node, by actor name."""
        return {start.name: start.handle for start in self._started.values() if start.kind == "engines"}

    def start(self, nodes: Sequence[Node], here: Node, on_wait: OnWait) -> None:
        """Start every server, and return once each answers.

        Raises:
            ServerStartError: One did not come up, or not in time; what was started is left to :meth:`stop`.
        """
        self._starter.on_wait = on_wait
        try:
            self._starter.start_all(nodes, here)
        finally:
            self._note_started()
        found = self._wait(on_wait)
        self.directory = ServerDirectory(found["models"], found["resources"])
        self.nodes.update(node.node_id for node in nodes)

    def open_on(self, node: Node, on_wait: OnWait) -> None:
        """Start what runs on every node on one that joined; its servers answer, and are listed, when this returns.

        Raises:
            ServerStartError: One did not come up; nothing of them is left there.
            GymRayError: The node was lost meanwhile, or ``on_wait`` gave up; nothing is left there either.
        """
        self._more(on_wait, lambda: self._starter.start_on(node))
        self.nodes.add(node.node_id)

    def lose(self, nodes: Collection[str]) -> bool:
        """Take what ran on lost nodes out of the directory; whether there was anything."""
        gone = [name for name, start in self._started.items() if start.node_id in nodes]
        for name in gone:
            # Its process may still run, cut off from us: nothing may bring it back here.
            ray.kill(self._started.pop(name).handle, no_restart=True)
            self._starter.forget(name)
        self.nodes.difference_update(nodes)
        self.directory = self.directory.without_nodes(nodes)
        return bool(gone)

    def refill(self, nodes: Sequence[Node], on_wait: OnWait) -> bool:
        """Start the replicas that were lost on the nodes with the fewest of them; whether there were any.

        Raises:
            GymRayError: One did not come up; those before it are listed.
        """
        changed = False
        for name, wanted in self._starter.wanted().items():
            while nodes and len(self.directory.models.get(name, ())) < wanted:
                used = [item.node for item in self.directory.models.get(name, ())]
                node = min(nodes, key=lambda node: used.count(node.node_id))
                self._more(on_wait, partial(self._starter.start_replica, name, node))
                changed = True
        return changed

    def stop(self, timeout_s: float = 10.0) -> None:
        """Let requests under way end, then end every server, engines last; idempotent."""
        close_actors(list(self.hosts.values()), timeout_s)
        close_actors(list(self.engines.values()), timeout_s)
        self._started.clear()

    def _more(self, on_wait: OnWait, start: Callable[[], None]) -> None:
        before = set(self._started)
        self._starter.on_wait = on_wait
        try:
            start()
            self._note_started()
            found = self._wait(on_wait)
        except BaseException:
            self._note_started()
            self._starter.waiting.clear()
            self._withdraw(set(self._started) - before)
            raise
        self.directory = self.directory.with_models(found["models"])

    def _withdraw(self, names: Iterable[str]) -> None:
        for name in names:
            ray.kill(self._started.pop(name).handle, no_restart=True)
            self._starter.forget(name)

    def _note_started(self) -> None:
        self._started.update({start.name: start for start in self._starter.waiting.values()})

    def _wait(self, on_wait: OnWait) -> dict[str, dict[str, list[Endpoint]]]:
        """Wait for what was told to start, and return where it is, by kind and server."""
        found: dict[str, dict[str, list[Endpoint]]] = {"models": {}, "resources": {}, "engines": {}}
        timeout_s, waiting = self._start_timeout_s, self._starter.waiting
        until = time.monotonic() + timeout_s if timeout_s else math.inf
        while waiting:
            done, pending = ray.wait(list(waiting), num_returns=1, timeout=MOMENT_S)
            if done:
                start = waiting.pop(done[0])
                found[start.kind].setdefault(start.server, []).append(Endpoint(start.node_id, get(done[0], None)))
                continue
            names = ", ".join(sorted({waiting[ref].server for ref in pending}))
            reasons = _reasons([waiting[ref].handle for ref in pending]) or names
            if time.monotonic() > until:
                raise ServerStartError(
                    f"not up after {timeout_s:g} s: {reasons}; {offer()}; raise start_timeout_s if they need longer"
                )
            on_wait(reasons)
        return found


def start_servers(
    settings: RunSettings,
    *,
    run_token: str,
    cache_dir: Path,
    control_token: str | None = None,
    on_wait: OnWait | None = None,
    namespace: str | None = None,
    weights: tuple[str, str] | None = None,
) -> RunningServers:
    """Start every model server and resources server of the settings and wait until each one answers.

    Args:
        settings: The run's settings.
        run_token: Bearer token of the run's control routes.
        cache_dir: Where the embedded model's weights are assembled.
        control_token: Bearer by which a trainer reads the manifests of a run whose workers keep the tokens (C220).
        on_wait: Called every moment while servers start, with what is waited for; it may raise to give up.
        namespace: Where the names of the servers' actors live, None for this process's own.
        weights: Name and namespace of the actor that knows the weights' version, for servers that start later on.

    Returns:
        The running servers; what was started is stopped again when one of them fails.

    Raises:
        ServerStartError: One did not come up, or not in ``start_timeout_s``; the message names it and the cause.
    """
    starter = ServerStarter(settings, ServerTokens(run_token, control_token), cache_dir, namespace, weights)
    running = RunningServers(starter, settings.start_timeout_s)
    try:
        running.start(working_nodes(), local_node(), on_wait or (lambda _: None))
    except BaseException:
        running.stop(timeout_s=2.0)
        raise
    return running


def _reasons(handles: Sequence[Any]) -> str:
    """Return what these actors say keeps them, "" when none of them says anything at once."""
    asked = [handle.health.remote() for handle in handles]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=MOMENT_S)
    said = set()
    for reference in answered:
        with suppress(ClusterError):  # an actor that died says so through its start
            said.add(get(reference, None).waits_for)
    return "; ".join(sorted(said - {""}))
