"""What a training loop's collector holds: Ray, where nobody else has begun it, servers, seats and the host of steps."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorAlreadyExistsError

from gym_ray.actors.calls import get
from gym_ray.actors.cluster import close_actors, connected, local_node, start_actor, working_nodes
from gym_ray.actors.crew import Crew
from gym_ray.actors.health import Health
from gym_ray.actors.membership import Membership
from gym_ray.actors.servers import RunningServers, start_servers
from gym_ray.actors.training.host import TrainingHost
from gym_ray.errors import ClusterError
from gym_ray.server_directory import ServerDirectory
from gym_ray.settings import RunSettings
from gym_ray.token_id_capture.config import control_auth_token

__all__ = ["RayPlace", "TrainingParts", "started_parts"]

_CLOSING_S = 60.0
_CALLS_AT_ONCE = 1000
_BACK_S = 60.0
_LOOK_S = 0.1
_HOST = "training"


@dataclass(frozen=True, slots=True)
class RayPlace:
    """Which cluster, where in it the actors' names live, where weights are assembled, and whose environment counts."""

    address: str | None
    namespace: str | None
    cache_dir: Path
    environ: Mapping[str, str]


@dataclass(slots=True)
class TrainingParts:
    """What was started, in the order in which it ends again.

    Attributes:
        host: Handle of the :class:`TrainingHost`.
        urls: Returns the root URL of every model server by what messages call it.
        run_token: What the servers ask for.
        interrupted: Steps that an earlier loop left half finished.
        reopen: Opens the host again if it lost its process, and returns whether it did.
        held: Ends everything.
    """

    host: Any
    urls: Callable[[], Mapping[str, str]]
    run_token: str | None
    interrupted: tuple[int, ...]
    reopen: Callable[[], bool]
    held: ExitStack


def started_parts(
    settings: RunSettings,
    output_dir: Path,
    place: RayPlace,
    directory: ServerDirectory | None,
    run_token: str | None,
    *,
    lanes: int,
) -> TrainingParts:
    """Start everything that a loop's steps share; what was started ends again when a part of it fails.

    A process that has begun Ray keeps it: it is neither begun nor ended for it.

    Raises:
        ClusterError: Ray cannot be joined, or an actor did not start.
        StorageError: Another collector uses the directory, or it cannot be written.
        SettingsError: An agent cannot be built.
    """
    try:
        return _started(settings, output_dir, place, directory, run_token, lanes)
    except ActorAlreadyExistsError as error:
        raise ClusterError(f"another collector uses the namespace {place.namespace!r}: {error}") from error


def _started(
    settings: RunSettings,
    output_dir: Path,
    place: RayPlace,
    directory: ServerDirectory | None,
    run_token: str | None,
    lanes: int,
) -> TrainingParts:
    space = place.namespace or f"gym-ray/{secrets.token_hex(4)}"
    with ExitStack() as stack:
        if not ray.is_initialized():
            stack.enter_context(connected(space, address=place.address or "local", log_format=settings.log_format))
        servers: RunningServers | None = None
        if directory is None:
            run_token = run_token or secrets.token_urlsafe(32)
            servers = start_servers(
                settings,
                run_token=run_token,
                control_token=_control_token(settings, place.environ),
                cache_dir=place.cache_dir,
                namespace=space,
                weights=(_HOST, space),
            )
            stack.callback(_with_ray, servers.stop)
        given = directory or (ServerDirectory({}, {}) if servers is None else servers.directory)
        # The joiners of several runs ask the host for a run's plan, by its name.
        crew = Crew(settings, (_HOST, space), calls_at_once=_CALLS_AT_ONCE, run_token=run_token, namespace=space)
        stack.callback(_with_ray, crew.close, 10.0)

        def now() -> ServerDirectory:
            return given if servers is None else servers.directory  # one that was started follows its nodes

        def urls() -> Mapping[str, str]:
            return {f"{name} at {item.url}": item.url for name, items in now().models.items() for item in items}

        host, interrupted, reopen = _hosted(stack, crew, servers, now, (output_dir, lanes, space))
        return TrainingParts(host, urls, run_token, interrupted, reopen, stack.pop_all())


def _hosted(
    stack: ExitStack,
    crew: Crew,
    servers: RunningServers | None,
    now: Callable[[], ServerDirectory],
    how: tuple[Path, int, str],
) -> tuple[Any, tuple[int, ...], Callable[[], bool]]:
    """Start seats and host; return the host, the steps it found half finished, and what opens it again."""
    output_dir, lanes, space = how
    nodes = [node for node in working_nodes() if servers is None or node.node_id in servers.nodes]
    workers, joiners = crew.start(nodes or working_nodes(), now())
    crew.wait(list(crew.handles), None)
    # A host that lost its process comes back under its name, and does nothing until it is opened again.
    host = start_actor(TrainingHost, local_node(), _HOST, lanes, namespace=space)
    stack.callback(_with_ray, close_actors, [host], _CLOSING_S)
    interrupted: tuple[int, ...] = get(host.open.remote(output_dir, workers, joiners), None)
    membership = Membership(crew, servers, now(), host)
    membership.start()
    stack.callback(membership.close)

    reopening = threading.Lock()

    def reopen() -> bool:
        with reopening:
            if _health_of(host).ready:
                return False
            get(host.open.remote(output_dir, *crew.seats(now())), None)
            return True

    return host, interrupted, reopen


def _with_ray(end: Callable[..., object], *arguments: object) -> None:
    """End something of ours, if Ray is there: a caller that has ended its Ray has ended everything of ours as well."""
    if ray.is_initialized():
        end(*arguments)


def _health_of(host: Any) -> Health:
    """Return what a host says of itself, once its process is there."""
    until = time.monotonic() + _BACK_S
    while True:
        try:
            found: Health = get(host.health.remote(), None)
        except ClusterError:  # Ray is starting its process again
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK_S)
        else:
            return found


def _control_token(settings: RunSettings, environ: Mapping[str, str]) -> str | None:
    block = settings.token_id_capture
    return control_auth_token(block, environ) if block.enabled and block.external_staging else None
