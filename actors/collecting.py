"""Put the actors of one collection together and take them apart again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gym_ray.actors.calls import OnWait, get
from gym_ray.actors.cluster import Node, close_actors, local_node, start_actor, working_nodes
from gym_ray.actors.collector import CollectionPlan, CollectorHost
from gym_ray.actors.crew import Crew
from gym_ray.actors.membership import Membership
from gym_ray.actors.servers import RunningServers
from gym_ray.rollouts.session import SessionStart
from gym_ray.server_directory import ServerDirectory
from gym_ray.settings import RunSettings

__all__ = ["RunningCollection", "collecting"]

_CLOSING_S = 45.0
"""Time for cancelled attempts to end and for their joins; both are bounded well below it."""


class RunningCollection:
    """An opened collection.

    Attributes:
        collector: Handle of the :class:`CollectorHost`.
        start: What beginning the run did.
        seats: Every worker and joiner, by actor name; nodes that join and are lost change them.
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
    servers: RunningServers | None = None,
) -> Iterator[RunningCollection]:
    """Begin a run and hold its collector, workers and joiners for the block.

    ``on_wait`` is called every moment while they start and may raise to give up; their names live in ``namespace``,
    None for this process's own. Nodes that join are used, and those that are lost are done without; ``servers`` are
    those of the run, which follow the nodes too, None where somebody else runs them.

    Raises:
        InputError: A row cannot be used; nothing of an earlier run has changed.
        StorageError: The output cannot be written, or another collector writes it.
        SettingsError: An agent cannot be built.
        ClusterError: An actor did not start.
    """
    # The collector is not restarted: its files say all there is to know, and a second one must not appear by itself.
    collector = start_actor(CollectorHost, local_node(), "collector", plan, max_restarts=0, namespace=namespace)
    crew = Crew(settings, plan.run, calls_at_once=plan.calls_at_once, run_token=run_token, namespace=namespace)
    membership = Membership(crew, servers, directory, collector)
    patience_s = settings.start_timeout_s or None
    closing_s = 2.0  # nothing runs yet that had to end in order
    try:
        # Starting has its time; expanding the input may take as long as it takes.
        get(collector.health.remote(), patience_s, on_wait)
        start = get(collector.begin.remote(), None, on_wait)
        workers, joiners = crew.start(_first_nodes(servers), directory)
        crew.wait(list(crew.handles), on_wait)
        get(collector.open.remote(workers, joiners), None, on_wait)
        membership.start()
        closing_s = _CLOSING_S
        yield RunningCollection(collector, start, crew.handles)
    except KeyboardInterrupt:
        closing_s = 1.0  # whoever interrupts a run that is being stopped wants to leave at once
        raise
    finally:
        membership.close()
        # The collector first: what has ended is joined before the joiners close.
        close_actors([collector], closing_s)
        crew.close(min(closing_s, 10.0))


def _first_nodes(servers: RunningServers | None) -> list[Node]:
    """Return the nodes that have their servers; one that joined meanwhile is taken up as such."""
    nodes = working_nodes()
    return [node for node in nodes if servers is None or node.node_id in servers.nodes] or nodes
