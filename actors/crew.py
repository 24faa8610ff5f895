"""Start the workers and joiners of a collection on nodes, and know who sits where."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import ray

from gym_ray.actors.calls import OnWait, get, resources
from gym_ray.actors.cluster import Node, close_actors, start_actor
from gym_ray.actors.joiner import JoinerHost
from gym_ray.actors.rollout_worker import RolloutWorkerHost
from gym_ray.actors.seats import Seat
from gym_ray.agents.context import ServerUrls
from gym_ray.server_directory import ServerDirectory
from gym_ray.settings import RunSettings

__all__ = ["Crew"]

_MOST_WORKERS_BY_DEFAULT = 4


class Crew:
    """Workers and joiners of one collection. Close it with :meth:`close`.

    Args:
        settings: The run's settings.
        run: What a joiner is made from: its run, or where it asks for those of several.
        calls_at_once: Calls that one seat must take at once.
        run_token: What the servers ask for, None when they ask for nothing.
        namespace: Where the actors' names live, None for this process's own.

    Attributes:
        handles: Every worker and joiner, by actor name.
    """

    def __init__(
        self, settings: RunSettings, run: object, *, calls_at_once: int, run_token: str | None, namespace: str | None
    ) -> None:
        self._settings, self._run, self._calls_at_once = settings, run, calls_at_once
        self._run_token, self._namespace = run_token, namespace
        self._workers: dict[str, tuple[int, str]] = {}  # turn and node by name
        self._nodes: dict[str, str] = {}  # by the name of a seat
        self._turn = 0
        self._joiner_count = 0
        self._per_node = 1
        self.handles: dict[str, Any] = {}

    @property
    def nodes(self) -> set[str]:
        """Ids of the nodes that have seats."""
        return set(self._nodes.values())

    def start(self, nodes: Sequence[Node], directory: ServerDirectory) -> tuple[list[Seat], list[Seat]]:
        """Tell the first workers and joiners to start; :meth:`wait` waits for them."""
        cpus = int(resources().get("CPU", 1))
        count = self._settings.num_rollout_workers or max(len(nodes), min(cpus, _MOST_WORKERS_BY_DEFAULT))
        self._per_node = max(1, count // len(nodes))
        workers = [self._worker(nodes[index % len(nodes)], directory) for index in range(count)]
        return workers, [self._joiner(node) for node in nodes]

    def start_on(self, node: Node, directory: ServerDirectory, on_wait: OnWait) -> tuple[list[Seat], list[Seat]]:
        """Start workers and a joiner on a node that joined; they can work when this returns.

        Raises:
            GymRayError: They cannot, or ``on_wait`` gave up; nothing of them is left there.
        """
        workers: list[Seat] = []
        joiners: list[Seat] = []
        try:
            workers += [self._worker(node, directory) for _ in range(self._per_node)]
            joiners += [self._joiner(node)]
            self.wait([seat.name for seat in (*workers, *joiners)], on_wait)
        except BaseException:
            self.lose({node.node_id})
            raise
        return workers, joiners

    def wait(self, names: Collection[str], on_wait: OnWait | None) -> None:
        """Wait until some seats can work, at most the settings' ``start_timeout_s``.

        Raises:
            GymRayError: One cannot; the message says why.
        """
        get([self.handles[name].ready.remote() for name in names], self._settings.start_timeout_s or None, on_wait)

    def lose(self, nodes: Collection[str]) -> None:
        """Give up what sits on these nodes; Ray must not bring it back, wherever its processes are."""
        for name in [name for name, node in self._nodes.items() if node in nodes]:
            ray.kill(self.handles.pop(name), no_restart=True)
            self._workers.pop(name, None)
            del self._nodes[name]

    def seats(self, directory: ServerDirectory) -> tuple[list[Seat], list[Seat]]:
        """Return a fresh seat of each worker and each joiner that is there, for a collector that forgot its own."""
        urls, handles = self.urls(directory), dict(self.handles)
        seats = [Seat(name, self._nodes.get(name, ""), handle, urls=urls.get(name)) for name, handle in handles.items()]
        return [seat for seat in seats if seat.name in urls], [seat for seat in seats if seat.name not in urls]

    def urls(self, directory: ServerDirectory) -> dict[str, ServerUrls]:
        """Return where each worker finds the servers of a directory."""
        return {name: _urls(directory, node, turn) for name, (turn, node) in list(self._workers.items())}

    def close(self, timeout_s: float) -> None:
        """End every seat; idempotent."""
        close_actors(list(self.handles.values()), timeout_s)
        self.handles.clear()

    def _worker(self, node: Node, directory: ServerDirectory) -> Seat:
        turn, self._turn = self._turn, self._turn + 1
        name = f"worker-{turn}"
        urls = _urls(directory, node.node_id, turn)
        self._workers[name] = turn, node.node_id
        return self._seat(RolloutWorkerHost, node, name, self._settings, urls, self._run_token)

    def _joiner(self, node: Node) -> Seat:
        name = f"joiner-{self._joiner_count}"
        self._joiner_count += 1
        return self._seat(JoinerHost, node, name, self._run)

    def _seat(self, host: type, node: Node, name: str, *arguments: Any) -> Seat:
        handle = start_actor(
            host, node, name, *arguments, max_concurrency=self._calls_at_once, namespace=self._namespace
        )
        self.handles[name], self._nodes[name] = handle, node.node_id
        return Seat(name, node.node_id, handle)


def _urls(directory: ServerDirectory, node: str, turn: int) -> ServerUrls:
    return ServerUrls(directory.model_urls(node, turn), directory.resource_urls(node, turn))
