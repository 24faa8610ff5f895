"""Take away what probes left in a directory: this run's, and that of runs whose processes were killed."""

from __future__ import annotations

import errno
import time

from gym_ray.storage.shared_place.place_calls import PlaceCalls

__all__ = ["PREFIX", "remove_run", "sweep_killed"]

PREFIX = ".gym-ray-doctor-"
_KILLED_AFTER_S = 900.0
"""No run takes as long; what is older belongs to nobody."""
_RETRIES, _PAUSE_S = 20, 0.05


def remove_run(calls: PlaceCalls, directory: str) -> None:
    """Remove a run's directory of files; nodes that do so at the same time do not disturb each other.

    Raises:
        OSError: Something is still there.
    """
    for left in reversed(range(_RETRIES)):
        try:
            for name in calls.list_names(directory):
                _remove(calls, f"{directory}/{name}")
            calls.remove_directory(directory)
        except (FileNotFoundError, NotADirectoryError):  # another node was faster, or there never was a directory
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY) or not left:
                raise
            time.sleep(_PAUSE_S)  # a name was hidden by a stale listing, or another node has it open still
        else:
            return


def _remove(calls: PlaceCalls, path: str) -> None:
    try:
        calls.unlink(path)
    except FileNotFoundError:
        return


def sweep_killed(calls: PlaceCalls, root: str, own: str) -> None:
    """Remove the directories of runs that were killed, told by the file system's own clock.

    Raises:
        OSError: It could not be looked.
    """
    now = calls.stat(f"{root}/{own}").st_mtime
    for name in calls.list_names(root):
        if not name.startswith(PREFIX) or name == own:
            continue
        try:
            if now - calls.stat(f"{root}/{name}").st_mtime > _KILLED_AFTER_S:
                remove_run(calls, f"{root}/{name}")
        except OSError:
            continue  # another run removes it now, or another user owns it: it is in nobody's way
