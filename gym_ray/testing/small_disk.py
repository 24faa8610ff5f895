"""A disk that is soon full, for one child process: a small tmpfs that nobody else sees and that ends with it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["can_mount", "on_small_disk"]

_MOUNT_AND_RUN = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'


def on_small_disk(directory: Path, size: str, command: Sequence[str]) -> list[str]:
    """Return a command that runs ``command`` with a tmpfs mounted on a directory, in a mount namespace of its own.

    Args:
        directory: An existing directory; outside of the command it stays as it is.
        size: As mount takes it, such as ``4m``.
        command: What to run.
    """
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", _MOUNT_AND_RUN, "sh", size, str(directory), *command]


def can_mount(directory: Path) -> bool:
    """Return whether this system lets its user do that; containers often do not."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(  # noqa: S603 - a fixed command
        on_small_disk(directory, "64k", ["true"]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    return tried.returncode == 0
