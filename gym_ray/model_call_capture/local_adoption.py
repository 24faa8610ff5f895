"""Takes over what dead writers of this machine left in its open logs, wherever their records are."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from gym_ray.errors import CaptureError, GymRayError, StorageError
from gym_ray.model_call_capture.marks import MarkPlace
from gym_ray.model_call_capture.open_log import OpenLog, list_logs, take_dead
from gym_ray.model_call_capture.recovery import one_adopter
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.own_directory import own_directory

__all__ = ["Heritage", "adopt_local_logs", "begun_log", "local_logs"]

_log = logging.getLogger(__name__)


def local_logs(local_dir: Path, place: str) -> Path:
    """Return the directory of this machine for the open logs of writers to one place.

    Args:
        local_dir: What is ours alone on this machine; created where it is missing.
        place: Where the writers record.

    Raises:
        CaptureError: Others own ``local_dir`` or could write to it: they would decide which calls count as lost.
    """
    try:
        own_directory(local_dir)
    except StorageError as error:
        raise CaptureError(f"the open logs of model servers cannot be kept: {error}") from error
    return local_dir / "open-logs" / hashlib.sha256(place.encode()).hexdigest()[:16]


class Heritage(MarkPlace, Protocol):
    """The place that dead writers recorded into."""

    def lost_calls(self, writer_id: str, open_calls: Mapping[str, str]) -> Mapping[str, list[str]]:
        """Return which calls that a dead writer began are recorded nowhere: rollout id to call ids.

        Raises:
            GymRayError: It cannot be found out.
        """

    def remove_writer(self, writer_id: str) -> None:
        """Remove the registration of a dead writer; a missing one is fine.

        Raises:
            GymRayError: It could not be done.
        """


def adopt_local_logs(logs: Path, label: str, heritage: Heritage) -> dict[str, list[str]]:
    """Mark the rollouts of calls that earlier processes of a server lost, and remove their registrations and logs.

    Args:
        logs: Local directory of their open logs.
        label: What the ids of the server's writers begin with.
        heritage: Where they recorded.

    Returns:
        The lost calls: rollout id to call ids.

    Raises:
        CaptureError: Something could not be read or written; names it. The log that it is about stays then.
    """
    found: dict[str, list[str]] = {}
    paths = [path for path in list_logs(logs) if path.stem.rpartition("-")[0] == label]
    if not paths:
        return found
    with one_adopter(logs, FileCalls()):
        for path in paths:
            try:
                lost = _adopt(path, heritage)
            except (OSError, GymRayError) as error:
                raise CaptureError(f"{path}: cannot adopt the log of a dead server: {error}") from error
            for rollout_id, call_ids in lost.items():
                found.setdefault(rollout_id, []).extend(call_ids)
    return found


def _adopt(path: Path, heritage: Heritage) -> Mapping[str, list[str]]:
    with take_dead(path) as dead:
        if dead is None:
            return {}
        lost = heritage.lost_calls(path.stem, dead.open_calls) if dead.open_calls else {}
        for rollout_id in lost:
            heritage.mark_incomplete(rollout_id)
        heritage.remove_writer(path.stem)
        dead.remove()
    level = logging.WARNING if lost else logging.INFO
    _log.log(level, "%s: its server died; rollouts that lost calls, marked now: %s", path, sorted(lost))
    return lost


def begun_log(
    logs: Path, label: str, writer_id: str, heritage: Heritage, place: str, register: Callable[[], None]
) -> OpenLog:
    """Take over what predecessors of a writer left, and return its own log once it is registered.

    Args:
        logs: From :func:`local_logs`.
        label: Name of the server, as in the names of its logs.
        writer_id: The writer.
        heritage: Where its predecessors recorded.
        place: The same, for messages.
        register: Makes the registration durable, or raises a GymRayError.

    Raises:
        CaptureError: A predecessor's log cannot be adopted, or the log or the registration cannot be made.
    """
    adopt_local_logs(logs, label, heritage)
    open_log = OpenLog(logs, f"{writer_id}.log")
    try:
        register()
    except GymRayError as error:
        open_log.close()
        raise CaptureError(f"{place}: the writer cannot be registered: {error}") from error
    return open_log
