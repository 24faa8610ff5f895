"""Asks a live run for something, and reads where it stands, from any machine that sees its files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import RunNotFoundError, StorageError
from gym_ray.rollouts.control.control_files import ControlPlaces, new_request, publish_small
from gym_ray.rollouts.run_paths import RunPaths

__all__ = ["RunStatus", "read_status", "send"]

_SILENT_S = 15.0
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The last word of a run.

    Attributes:
        value: What the desk wrote.
        age_s: How old it is by this machine's clock; never below 0.
    """

    value: dict[str, Any]
    age_s: float

    @property
    def over(self) -> bool:
        """Whether the run said that it is over."""
        return bool(self.value["state"] == "over")

    @property
    def silent(self) -> bool:
        """Whether a run that should speak each second has not: its collector, or the way to it, may be gone."""
        return not self.over and self.age_s > _SILENT_S


def read_status(paths: RunPaths) -> RunStatus:
    """Return the last word of a run.

    Raises:
        RunNotFoundError: No run has said anything there.
        StorageError: The word cannot be read.
    """
    path = ControlPlaces.of(paths).status
    try:
        value = exact_json.loads_object(path.read_bytes())
    except FileNotFoundError:
        raise RunNotFoundError(f"{path}: no run has said where it stands; is {paths.output} its output?") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error}") from error
    kinds = {"state": str, "run_id": str, "desk": str, "progress": dict, "at": float | int}
    if value is None or any(not isinstance(value.get(key), kind) for key, kind in kinds.items()):
        raise StorageError(f"{path}: this is no status of a run")
    return RunStatus(value, max(0.0, time.time() - value["at"]))


def send(
    paths: RunPaths, action: str, rollout_ids: Sequence[str] | None = None, *, timeout_s: float = 30.0
) -> dict[str, Any]:
    """Ask a run for something and wait for its answer.

    Args:
        paths: The run.
        action: ``pause``, ``resume``, ``drain``, ``cancel`` or ``requeue``.
        rollout_ids: Rollouts that are meant by the last two, None for all that can be.
        timeout_s: How long to wait for the answer.

    Returns:
        The answer: ``error`` is None when it was done; ``done`` and ``refused`` tell of single rollouts.

    Raises:
        RunNotFoundError: There is no live run, or nobody answers; an unanswered request is withdrawn.
        StorageError: A file cannot be written or read.
    """
    status, places = read_status(paths), ControlPlaces.of(paths)
    if status.over:
        raise RunNotFoundError(f"{paths.output}: the run is over; nothing can be asked of it")
    request = new_request(status.value, action, rollout_ids)
    asked, answer = places.requests / f"{request.id}.json", places.answers / f"{request.id}.json"
    publish_small(asked, request.encode())
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        try:
            value = exact_json.loads_object(answer.read_bytes())
        except FileNotFoundError:
            time.sleep(_LOOK_S)
            continue
        answer.unlink(missing_ok=True)
        if value is None:
            raise StorageError(f"{answer}: this is no answer")
        return value
    try:
        asked.unlink()
        fate = "the request was withdrawn"
    except FileNotFoundError:
        fate = "the request was taken, and may have been done"
    age_s = read_status(paths).age_s
    raise RunNotFoundError(f"{paths.output}: nobody answers: last word {age_s:.0f} s ago; {fate}")
