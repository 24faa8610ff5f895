"""Put the actors of one collection together and take them apart again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gym_ray.actors.calls import OnWait, get, resources
from gym_ray.actors.cluster import alive_nodes, close_actors, local_node, start_actor
from gym_ray.actors.collector import CollectionPlan, CollectorHost
from gym_ray.actors.joiner import JoinerHost
from gym_ray.actors.rollout_worker import RolloutWorkerHost
from gym_ray.actors.seats import Seat
from gym_ray.agents.context import ServerUrls
from gym_ray.rollouts.session import SessionStart
from gym_ray.server_directory import ServerDirectory
from gym_ray.settings import RunSettings

__all__ = ["RunningCollection", "collecting"]

_MOST_WORKERS_BY_DEFAULT = 4
_CLOSING_S = 45.0
"""Time for cancelled attempts to end and for their joins; both are bounded well below it."""


class RunningCollection:
    """An opened collection.

    Attributes:
        collector: Handle of the :class:`CollectorHost`.
        start: What beginning the run did.
        seats: Every worker and joiner, by actor name.
    """

    def __init__(self, collector: Any, start: SessionStart, seats: dict[str, Any]) -> None:
        self.collector, self.start, self.seats = collector, start, seats


@contextmanager
def collecting(
    settings: RunSettings,
    plan: CollectionPlan,
    directory: ServerDirectory,
    *,
    run_token: str | None,
    on_wait: OnWait | None = None,
    namespace: str | None = None,
) -> Iterator[RunningCollection]:
    """Begin a run and hold its collector, workers and joiners for the block.

    ``on_wait`` is called every moment while they start and may raise to give up; their names live in ``namespace``,
    None for this process's own.

    Raises:
        InputError: A row cannot be used; nothing of an earlier run has changed.
        StorageError: The output cannot be written, or another collector writes it.
        SettingsError: An agent cannot be built.
        ClusterError: An actor did not start.
    """
    # The collector is not restarted: its files say all there is to know, and a second one must not appear by itself.
    collector = start_actor(CollectorHost, local_node(), "collector", plan, max_restarts=0, namespace=namespace)
    seats: dict[str, Any] = {}
    patience_s = settings.start_timeout_s or None
    closing_s = 2.0  # nothing runs yet that had to end in order
    try:
        # Starting has its time; expanding the input may take as long as it takes.
        get(collector.health.remote(), patience_s, on_wait)
        start = get(collector.begin.remote(), None, on_wait)
        workers = _workers(settings, plan, directory, run_token, seats, namespace)
        joiners = _joiners(plan, seats, namespace)
        get([seat.ready.remote() for seat in seats.values()], patience_s, on_wait)
        get(collector.open.remote(workers, joiners), None, on_wait)
        closing_s = _CLOSING_S
        yield RunningCollection(collector, start, seats)
    except KeyboardInterrupt:
        closing_s = 1.0  # whoever interrupts a run that is being stopped wants to leave at once
        raise
    finally:
        # The collector first: what has ended is joined before the joiners close.
        close_actors([collector], closing_s)
        close_actors(list(seats.values()), min(closing_s, 10.0))


def _workers(
    settings: RunSettings,
    plan: CollectionPlan,
    directory: ServerDirectory,
    run_token: str | None,
    seats: dict[str, Any],
    namespace: str | None,
) -> list[Seat]:
    nodes = alive_nodes()
    cpus = int(resources().get("CPU", 1))
    count = settings.num_rollout_workers or max(len(nodes), min(cpus, _MOST_WORKERS_BY_DEFAULT))
    found = []
    for index in range(count):
        node = nodes[index % len(nodes)]
        urls = ServerUrls(directory.model_urls(node.node_id, index), directory.resource_urls(node.node_id, index))
        name = f"worker-{index}"
        seats[name] = start_actor(
            RolloutWorkerHost,
            node,
            name,
            settings,
            urls,
            run_token,
            max_concurrency=plan.calls_at_once,
            namespace=namespace,
        )
        found.append(Seat(name, node.node_id, seats[name]))
    return found


def _joiners(plan: CollectionPlan, seats: dict[str, Any], namespace: str | None) -> list[Seat]:
    found = []
    for index, node in enumerate(alive_nodes()):
        name = f"joiner-{index}"
        seats[name] = start_actor(
            JoinerHost, node, name, plan.run, max_concurrency=plan.calls_at_once, namespace=namespace
        )
        found.append(Seat(name, node.node_id, seats[name]))
    return found
