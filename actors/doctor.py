"""Let every node of the cluster look at a place: for ``gym-ray doctor``, and shortly at the start of a run (D136).

Hosting only: what the nodes do there and what that amounts to is in ``gym_ray.storage.shared_place``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gym_ray.actors.calls import OnWait, get
from gym_ray.actors.cluster import Node, alive_nodes
from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import ClusterError
from gym_ray.storage.shared_place.examining import examine
from gym_ray.storage.shared_place.hands import open_hand, take_step
from gym_ray.storage.shared_place.judging import CaptureWriterKind, judge
from gym_ray.storage.shared_place.place_calls import PlaceCalls
from gym_ray.storage.shared_place.report import PlaceReport
from gym_ray.storage.shared_place.short_check import (
    ProbedPlace,
    create_place,
    read_probe,
    remove_probes,
    write_probe,
)

__all__ = ["check_place", "check_shared"]

_REMEDY = "mount it on every node, see `gym-ray doctor`, or set model_call_capture_writer: hosted"


class _ProbeHost:
    """Takes one node's steps, one after the other, in a process of that node."""

    def __init__(
        self, location: CaptureLocation, run: str, me: int, make_calls: Callable[[], PlaceCalls] = PlaceCalls
    ) -> None:
        self._hand = open_hand(location.where, location.storage_options, run, me, make_calls)

    def take(self, step: str, *arguments: Any) -> Any:
        """Take a step; an error travels as its text, so that any error does."""
        try:
            return take_step(self._hand, step, arguments)
        except OSError as error:
            raise ClusterError(str(error)) from error


class _RayNode:
    """A node of the cluster, as :class:`gym_ray.storage.shared_place.hands.ProbeNode`."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name, self.actor = name, actor

    def start(self, step: str, *arguments: Any) -> Future[Any]:
        """Tell the node to take a step."""
        future: Future[Any] = self.actor.take.remote(step, *arguments).future()
        return future


def check_place(
    location: CaptureLocation,
    *,
    writer: CaptureWriterKind = "direct",
    patience_s: float = 5.0,
    step_timeout_s: float = 30.0,
    on_wait: OnWait | None = None,
    make_calls: Callable[[], PlaceCalls] = PlaceCalls,
) -> PlaceReport:
    """Examine a place from every living node, by one process on each; nothing of it is left there.

    Args:
        location: The place.
        writer: Who will write captures there.
        patience_s: How long a node looks for a change of another.
        step_timeout_s: A node that has not answered then is reported as lost.
        on_wait: Called every moment; it may raise to give up.
        make_calls: Gives each node its calls of the operating system; it travels to the node.

    Raises:
        SettingsError: The store cannot be opened at all.
    """
    nodes, run = alive_nodes(), secrets.token_hex(6)
    with _probes(nodes, location, run, make_calls) as probes:
        evidence = examine(
            str(location),
            probes,
            is_store=location.directory is None,
            watchers=f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'} of a Ray cluster",
            patience_s=patience_s,
            step_timeout_s=step_timeout_s,
            on_wait=None if on_wait is None else lambda: on_wait(""),
        )
    return judge(evidence, writer)


@contextmanager
def _probes(
    nodes: Sequence[Node], location: CaptureLocation, run: str, make_calls: Callable[[], PlaceCalls]
) -> Iterator[list[_RayNode]]:
    # A node that offers no CPU, such as a head, takes part as well: hard affinity places an empty request.
    remote: Any = ray.remote
    host = remote(num_cpus=0, max_restarts=0, max_task_retries=0)(_ProbeHost)
    probes = [
        _RayNode(name, host.options(scheduling_strategy=_on(node)).remote(location, run, me, make_calls))
        for me, (node, name) in enumerate(zip(nodes, _names(nodes), strict=True))
    ]
    try:
        yield probes
    finally:
        for probe in probes:
            ray.kill(probe.actor, no_restart=True)


def check_shared(
    places: Iterable[CaptureLocation | Path | str], *, timeout_s: float = 30.0, on_wait: OnWait | None = None
) -> None:
    """Return when every node sees what every other node wrote at each place; on one node, at once.

    A directory that is missing is created on this node, as model servers would.

    Args:
        places: Directories and stores that must be the same everywhere.
        timeout_s: How long all nodes may take for a step; a third of it is their patience with each other.
        on_wait: Called every moment; it may raise to give up.

    Raises:
        ClusterError: A node sees another place, or cannot write there; the message names node and place.
        StorageError: A directory cannot be created here.
    """
    nodes = alive_nodes()
    located = [place if isinstance(place, CaptureLocation) else CaptureLocation.of(place) for place in places]
    if len(nodes) < 2 or not located:  # one node sees what it sees
        return
    probed: list[ProbedPlace] = [(location.where, location.storage_options) for location in located]
    for place in probed:
        create_place(place)
    run, numbers = secrets.token_hex(6), range(len(nodes))
    names = _names(nodes)
    try:
        written = _everywhere(nodes, write_probe, [(probed, run, me) for me in numbers], timeout_s, on_wait)
        for at, location in enumerate(located):
            problems = [f"{names[me]}: {written[me][at]}" for me in numbers if written[me][at]]
            if problems:
                raise ClusterError(f"{location}: not every node can write there: {'; '.join(problems)}; {_REMEDY}")
        tasks = [
            (probed, run, [[other for other in numbers if other != me]] * len(probed), timeout_s / 3) for me in numbers
        ]
        missing = _everywhere(nodes, read_probe, tasks, timeout_s, on_wait)
        for at, location in enumerate(located):
            for me in numbers:
                if missing[me][at]:
                    others = ", ".join(names[other] for other in missing[me][at])
                    raise ClusterError(f"{location} on {names[me]} is not the place that {others} sees; {_REMEDY}")
    finally:
        _clean(nodes, probed, run, timeout_s)


def _clean(nodes: Sequence[Node], places: Sequence[ProbedPlace], run: str, timeout_s: float) -> None:
    """Let every node remove all probes that it sees; one that does not answer in time keeps nobody back."""
    numbers = list(range(len(nodes)))
    references = [_task(node, remove_probes).remote(places, run, numbers) for node in nodes]
    ray.wait(references, num_returns=len(references), timeout=timeout_s)


def _everywhere(
    nodes: Sequence[Node],
    work: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    timeout_s: float,
    on_wait: OnWait | None,
) -> list[Any]:
    references = [_task(node, work).remote(*given) for node, given in zip(nodes, arguments, strict=True)]
    answers: list[Any] = get(references, timeout_s, on_wait)
    return answers


def _task(node: Node, work: Callable[..., Any]) -> Any:
    remote: Any = ray.remote
    return remote(num_cpus=0, max_retries=0, scheduling_strategy=_on(node))(work)


def _on(node: Node) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node.node_id, soft=False)


def _names(nodes: Sequence[Node]) -> list[str]:
    """Return how messages call nodes: by address, and by id as well where several have one address."""
    addresses = [node.ip for node in nodes]
    return [
        f"node {node.ip}" if addresses.count(node.ip) == 1 else f"node {node.ip} ({node.node_id[:8]})" for node in nodes
    ]
