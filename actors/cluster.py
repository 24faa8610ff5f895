"""Connect to Ray, see its nodes, and put actors where they belong."""

from __future__ import annotations

import errno
import logging
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import AuthenticationError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gym_ray.actors.addresses import check_listening
from gym_ray.actors.calls import OnWait, get
from gym_ray.errors import ClusterError, ServerStartError
from gym_ray.log_context import LogFormat

__all__ = [
    "LOOPBACK",
    "Node",
    "alive_nodes",
    "close_actors",
    "connected",
    "local_node",
    "pick_ports",
    "start_actor",
    "working_nodes",
]

LOOPBACK = "127.0.0.1"

# Ray places empty requests at random; a sliver of a CPU makes it honour affinity and spreading.
_SLIVER = 0.001
_PORTS = range(10001, 20001)


@dataclass(frozen=True, slots=True)
class Node:
    """A living node of the cluster.

    Attributes:
        node_id: Its id, in hexadecimal digits.
        ip: Its address.
        cpus: What it offers; a node of 0 takes no work, such as the head of a cluster that others work for.
    """

    node_id: str
    ip: str
    cpus: float = 1.0


@contextmanager
def connected(
    namespace: str,
    *,
    address: str = "local",
    num_cpus: int | None = None,
    log_level: str = "WARNING",
    log_format: LogFormat = "text",
) -> Iterator[None]:
    """Hold a connection to Ray; a cluster that this call started ends with the block.

    Args:
        namespace: Names of this run's actors live here; runs do not see each other's.
        address: ``local`` starts a cluster on this machine, bound to loopback; anything else is joined.
        num_cpus: CPUs that a local cluster offers; None takes the machine's.
        log_level: Level of the loggers of the actors, and of this process.
        log_format: How they log.

    Raises:
        ClusterError: Ray could not be started or joined; the message holds the cause.
    """
    check_listening(address)
    local: dict[str, Any] = {}
    logs = ray.LoggingConfig(log_format.upper(), log_level, additional_log_standard_attrs=["name"])
    if address == "local":
        local = {"include_dashboard": False, "num_cpus": num_cpus, "_node_ip_address": LOOPBACK}
    try:
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=True,
            logging_level=logging.WARNING,
            logging_config=logs,
            **local,
        )
    except AuthenticationError as error:
        remedy = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE, a file with the cluster's token"
        raise ClusterError(
            f"cannot {'start' if local else 'join'} Ray at {address!r} without its token; {remedy}"
        ) from error
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise ClusterError(f"cannot {'start' if local else 'join'} Ray at {address!r}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def alive_nodes() -> list[Node]:
    """Return the living nodes, this driver's node first."""
    here = ray.get_runtime_context().get_node_id()
    nodes = [
        Node(n["NodeID"], n["NodeManagerAddress"], float(n["Resources"].get("CPU", 0.0)))
        for n in ray.nodes()  # type: ignore[no-untyped-call]
        if n["Alive"]
    ]
    return sorted(nodes, key=lambda node: (node.node_id != here, node.node_id))


def working_nodes() -> list[Node]:
    """Return the living nodes that take work, this driver's node first; all of them where none offers a CPU."""
    nodes = alive_nodes()
    return [node for node in nodes if node.cpus] or nodes


def local_node() -> Node:
    """Return the node this process runs on."""
    return alive_nodes()[0]


def start_actor(
    cls: type,
    node: Node,
    name: str,
    *arguments: Any,
    max_restarts: int = -1,
    max_concurrency: int = 1000,
    namespace: str | None = None,
) -> Any:
    """Start an actor as all of ours are: on this node, named, restarted, its calls never repeated by Ray.

    Its name lives in ``namespace``, None for the one that this process is connected with. Methods marked for the group
    ``control`` have a thread of their own, so that they answer while the actor is busy.
    """
    # Ray's annotations do not know concurrency groups, nor that a class keeps its constructor's arguments.
    remote: Any = ray.remote
    return (
        remote(concurrency_groups={"control": 2})(cls)
        .options(
            name=name,
            namespace=namespace,
            num_cpus=_SLIVER if node.cpus else 0,
            max_restarts=max_restarts,
            max_task_retries=0,
            max_concurrency=max_concurrency,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        )
        .remote(*arguments)
    )


def _free_ports(host: str, count: int) -> list[int]:
    """Return different free ports of 10001 to 20000 (D128): outgoing connections do not take one while it is free."""
    # All are held at once, so that no two are the same.
    with ExitStack() as held:
        found: list[int] = []
        for port in random.sample(_PORTS, len(_PORTS)):
            if len(found) == count:
                return found
            sock = held.enter_context(socket.socket())
            try:
                sock.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise ServerStartError(f"{host}: cannot listen there: {error}") from error
                continue
            found.append(port)
    raise ServerStartError(f"{host}: no free port between {_PORTS[0]} and {_PORTS[-1]}")


def pick_ports(node: Node, host: str, count: int, timeout_s: float = 60.0, on_wait: OnWait | None = None) -> list[int]:
    """Return ``count`` different free ports of ``host`` on a node.

    A hosted server gets its port before it starts, so that its restart comes back where its clients look for it.
    """
    if node.node_id == local_node().node_id:
        return _free_ports(host, count)
    strategy = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    remote: Any = ray.remote
    task = remote(num_cpus=_SLIVER, scheduling_strategy=strategy, max_retries=0)(_free_ports)
    ports: list[int] = get(task.remote(host, count), timeout_s, on_wait)
    return ports


def close_actors(actors: Sequence[Any], timeout_s: float) -> None:
    """Ask every actor to close, wait at most ``timeout_s`` for all of them, then end their processes.

    An actor that cannot close in time, or is dead already, is ended all the same: nothing durable waits in an actor.
    """
    pending = [actor.close.remote() for actor in actors]
    ray.wait(pending, num_returns=len(pending), timeout=timeout_s) if pending else None
    for actor in actors:
        ray.kill(actor, no_restart=True)
