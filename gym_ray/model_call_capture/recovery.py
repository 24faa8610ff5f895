"""What a dead writer left behind: calls that began, never ended, and are in no file. Each marks its rollout (A50).

Done by the next server of the same name when it starts, and by whoever joins a rollout before that.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gym_ray.correlation import check_rollout_id
from gym_ray.errors import CaptureError, GymRayError, StorageError
from gym_ray.model_call_capture.open_log import list_logs, take_dead
from gym_ray.model_call_capture.registry import OWN_DIRECTORY, WriterRegistry
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import OWNER_ONLY, OWNER_ONLY_DIRECTORY, keep_to_owner, make_directory

__all__ = [
    "adopt_dead_logs",
    "clear_rollout",
    "forget_in_dead_logs",
    "lost_calls",
    "lost_calls_of_dead_writers",
    "one_adopter",
]

_log = logging.getLogger(__name__)


def lost_calls(store: CaptureStore, open_calls: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the calls that are in no capture file, by rollout: rollout id to call ids.

    Raises:
        CaptureError: A capture file cannot be read.
        RolloutIdError: An id cannot be a file name.
    """
    lost: dict[str, list[str]] = {}
    for call_id, rollout_id in open_calls.items():
        lost.setdefault(rollout_id, []).append(call_id)
    for rollout_id in list(lost):
        exchanges, _ = store.read_available(rollout_id)
        recorded = {exchange.get("model_call_id") for _, exchange in exchanges}
        lost[rollout_id] = [call_id for call_id in lost[rollout_id] if call_id not in recorded]
        if not lost[rollout_id]:
            del lost[rollout_id]
    return lost


def adopt_dead_logs(store: CaptureStore, server_label: str, *, calls: FileCalls | None = None) -> list[str]:
    """Take over what earlier processes of a server left: mark the rollouts of lost calls, then remove their logs.

    Returns:
        The marked rollouts.

    Raises:
        CaptureError: A log, a capture file or a marker cannot be read or written; names it. Nothing is removed then.
    """
    marked: list[str] = []
    paths = [path for path in list_logs(store.root) if path.stem.rpartition("-")[0] == server_label]
    if not paths:
        return marked
    with one_adopter(store.root, calls or FileCalls()):
        for path in paths:
            try:
                lost = _adopt(store, path, calls)
            except (OSError, GymRayError) as error:
                raise CaptureError(f"{path}: cannot adopt the log of a dead server: {error}") from error
            if lost is not None:
                marked.extend(lost)
                level = logging.WARNING if lost else logging.INFO
                _log.log(level, "%s: its server died; rollouts that lost calls, marked now: %s", path, sorted(lost))
    return marked


def _adopt(store: CaptureStore, path: Path, calls: FileCalls | None) -> list[str] | None:
    """Return the rollouts that were marked; None when the log's writer lives, or another adopted it before us."""
    with take_dead(path, calls) as dead:
        if dead is None:
            return None
        lost = lost_calls(store, dead.open_calls)
        for rollout_id in lost:
            store.mark_incomplete(rollout_id)
        WriterRegistry(store.root, calls=calls).remove_by_log(path.name)
        dead.remove()
    return list(lost)


@contextmanager
def one_adopter(root: Path, calls: FileCalls) -> Iterator[None]:
    """Servers that start together adopt one after the other.

    The logs themselves stay locked shared: a joiner that meets an exclusive lock would take its writer for alive.

    Raises:
        CaptureError: The lock cannot be made or taken.
    """
    path = root / OWN_DIRECTORY / "adopt.lock"
    try:
        make_directory(calls, path.parent, OWNER_ONLY_DIRECTORY)
        fd = calls.open(str(path), os.O_RDWR | os.O_CREAT, OWNER_ONLY)
        try:
            keep_to_owner(calls, fd, calls.fstat(fd), str(path))
            calls.lock_exclusive(fd, wait=True)
            yield
        finally:
            calls.close(fd)
    except OSError as error:
        raise CaptureError(f"{path}: cannot be created and locked: {error}") from error


def lost_calls_of_dead_writers(store: CaptureStore, rollout_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return, and mark, the calls of these rollouts that dead writers lost; their logs stay for their own servers.

    Raises:
        CaptureError: A log, a capture file or a marker cannot be read or written.
    """
    wanted = set(rollout_ids)
    lost: dict[str, list[str]] = {}
    for path in list_logs(store.root):
        try:
            with take_dead(path) as dead:
                open_calls = dead.open_calls if dead is not None else {}
        except OSError as error:
            raise CaptureError(f"{path}: cannot be read: {error}") from error
        ours = {call_id: rollout_id for call_id, rollout_id in open_calls.items() if rollout_id in wanted}
        for rollout_id, call_ids in lost_calls(store, ours).items():
            store.mark_incomplete(rollout_id)
            lost.setdefault(rollout_id, []).extend(call_ids)
    return lost


def clear_rollout(store: CaptureStore, rollout_id: str) -> None:
    """Empty a rollout's capture before its attempt is dispatched, also of what dead writers still owe it (A83).

    Tell the living writers before (:func:`gym_ray.model_call_capture.quiesce.forget`): the calls that they have open
    belong to an earlier attempt then, and not one of their records is in the file after this.

    Raises:
        RolloutIdError: The id cannot be a file name.
        CaptureError: The capture cannot be cleared.
        StorageError: A dead writer's log cannot be read or written.
    """
    forget_in_dead_logs(store.root, check_rollout_id(rollout_id))
    store.clear(rollout_id)


def forget_in_dead_logs(root: Path, rollout_id: str) -> None:
    """Note in the logs of dead writers that a rollout begins anew, so that its old calls are nobody's loss.

    Raises:
        StorageError: A log cannot be read or written.
    """
    for path in list_logs(root):
        try:
            with take_dead(path) as dead:
                if dead is not None and rollout_id in dead.open_calls.values():
                    dead.clear(rollout_id)
        except OSError as error:
            raise StorageError(f"{path}: cannot be cleared of {rollout_id}: {error}") from error
