"""Follow the nodes of a cluster while a run goes on: use those that join, do without those that are lost.

Ray says which nodes live. A node that joins gets its servers first, then its workers and joiner, and only then is any
of it used, so that a node that dies on the way costs nothing. A node that is lost leaves the directory at once; what
ran there ends by itself and becomes new attempts.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from ray.exceptions import RayError

from gym_ray.actors.calls import get
from gym_ray.actors.cluster import Node, working_nodes
from gym_ray.actors.crew import Crew
from gym_ray.actors.servers import RunningServers
from gym_ray.errors import ClusterError, GymRayError
from gym_ray.server_directory import ServerDirectory

__all__ = ["Membership"]

_log = logging.getLogger(__name__)
_TELLING_S = 60.0
_CLOSING_S = 30.0


class Membership:
    """Keeps servers and seats where the nodes are, in a thread of its own. Close it before either of them ends.

    Args:
        crew: The run's workers and joiners; changed here alone while the thread runs.
        servers: The run's servers, likewise; None where somebody else runs them.
        directory: Where the servers are.
        collector: Handle of the actor that uses the seats: it has ``admit(workers, joiners)``, ``part(nodes)`` and
            ``use(urls)``, see :class:`~gym_ray.actors.collector.CollectorHost`.
        poll_s: Time between two looks at the nodes.
        rest_s: How long a node on which nothing could start is left alone.
    """

    def __init__(
        self,
        crew: Crew,
        servers: RunningServers | None,
        directory: ServerDirectory,
        collector: Any,
        *,
        poll_s: float = 1.0,
        rest_s: float = 60.0,
    ) -> None:
        self._crew, self._servers, self._directory, self._collector = crew, servers, directory, collector
        self._poll_s, self._rest_s = poll_s, rest_s
        self._resting: dict[str, float] = {}  # node: when it may be tried again
        self._named: set[str] = set()  # nodes whose failure the log knows
        self._short = False  # a replica was lost and not replaced
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="membership", daemon=True)

    def start(self) -> None:
        """Follow the nodes from now on."""
        self._thread.start()

    def close(self) -> None:
        """Follow them no longer: nothing changes servers or seats once this has returned."""
        self._closing.set()
        if self._thread.ident is None:
            return
        self._thread.join(_CLOSING_S)
        if self._thread.is_alive():
            _log.error("Ray does not answer; the nodes of the cluster are no longer followed")

    def _follow(self) -> None:
        while not self._closing.wait(self._poll_s):
            try:
                self.look()
            except _ClosingError:
                return
            except (GymRayError, RayError) as error:
                _log.warning("the nodes of the cluster cannot be followed at the moment: %s", error)

    def look(self) -> None:
        """Look at the nodes once, and do what has to be done about them.

        Raises:
            GymRayError: The collector could not be told, or a lost replica could not be replaced.
        """
        nodes = self._drop_lost()
        if self._short:
            self._refill(nodes)
        for node in nodes:
            if node.node_id not in self._crew.nodes and time.monotonic() >= self._resting.get(node.node_id, 0.0):
                self._take(node)

    def _drop_lost(self) -> list[Node]:
        """Do without what is on nodes that are gone, and return those that are there."""
        nodes = working_nodes()
        known = self._crew.nodes | (set() if self._servers is None else self._servers.nodes)
        lost = known - {node.node_id for node in nodes}
        if not lost:
            return nodes
        _log.warning("lost the nodes %s; %d are left", ", ".join(sorted(lost)), len(nodes))
        # First the seats, so that nobody is sent there; then what the others are told.
        self._tell(self._collector.part.remote(sorted(lost)))
        self._crew.lose(lost)
        if self._servers is not None:
            self._short |= self._servers.lose(lost)
        self._directory = self._directory.without_nodes(lost)
        self._spread_word()
        return nodes

    def _refill(self, nodes: list[Node]) -> None:
        if self._servers is None:
            return
        try:
            changed = self._servers.refill(nodes, self._keep_watch)
        finally:
            self._directory = self._servers.directory
        self._short = False
        if changed:
            self._spread_word()

    def _take(self, node: Node) -> None:
        try:
            if self._servers is not None and node.node_id not in self._servers.nodes:
                self._servers.open_on(node, self._keep_watch)
                self._directory = self._servers.directory
            workers, joiners = self._crew.start_on(node, self._directory, self._keep_watch)
            self._tell(self._collector.admit.remote(workers, joiners))
        except _ClosingError:
            raise
        except (GymRayError, RayError) as error:
            self._leave_alone(node, error)
            return
        self._resting.pop(node.node_id, None)
        self._named.discard(node.node_id)
        _log.warning("the node %s (%s) joined: %d workers", node.node_id, node.ip, len(workers))

    def _leave_alone(self, node: Node, error: Exception) -> None:
        self._crew.lose({node.node_id})
        if all(other.node_id != node.node_id for other in working_nodes()):
            _log.warning("the node %s (%s) was lost before it could be used", node.node_id, node.ip)
            return
        self._resting[node.node_id] = time.monotonic() + self._rest_s
        say = _log.debug if node.node_id in self._named else _log.error
        self._named.add(node.node_id)
        say(
            "nothing could be started on the node %s (%s), which is left alone for %g s: %s",
            node.node_id,
            node.ip,
            self._rest_s,
            error,
        )

    def _spread_word(self) -> None:
        self._tell(self._collector.use.remote(self._crew.urls(self._directory)))

    def _tell(self, reference: Any) -> None:
        get(reference, _TELLING_S, self._check_open)

    def _keep_watch(self, _: str) -> None:
        """Called while something starts: a run that ends waits for nothing, and a loss is not left until later."""
        self._check_open(_)
        self._drop_lost()

    def _check_open(self, _: str) -> None:
        if self._closing.is_set():
            raise _ClosingError("the run ends")


class _ClosingError(ClusterError):
    """The thread was told to end while it waited."""
