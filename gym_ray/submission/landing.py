"""Whether the directory that a driver was given is the one that was submitted, and free for it (D136)."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gym_ray import exact_json
from gym_ray.errors import ClusterError, StorageError
from gym_ray.storage.durable_files import replace_file
from gym_ray.storage.local_calls import file_calls_for
from gym_ray.submission.job_files import JOB

__all__ = ["check_directory", "held"]

_LOCK = ".driver-lock"
_BUSY = frozenset({errno.EAGAIN, errno.EACCES})
_log = logging.getLogger(__name__)


def check_directory(directory: Path) -> None:
    """Make sure that a benchmark's directory is here, is that of its job, and can be written and read.

    Raises:
        StorageError: It is not; the message names this machine and what to do.
    """
    here = socket.gethostname()
    remedy = "job.output_path must be on storage that every node mounts at the same path"
    if not directory.is_dir():
        raise StorageError(f"{directory}: is not on this node, {here}: {remedy}")
    try:
        job = exact_json.loads_object((directory / JOB).read_bytes())
    except FileNotFoundError:
        raise StorageError(
            f"{directory}: is another directory on this node, {here}: no {JOB} in it; {remedy}"
        ) from None
    except OSError as error:
        raise StorageError(f"{directory / JOB}: cannot be read on {here}: {error}") from error
    if job is None or job.get("name") != directory.name or job.get("job_id") != directory.parent.name:
        raise StorageError(f"{directory / JOB}: is damaged, or of another benchmark, on {here}")
    _probe(directory, here)


def _probe(directory: Path, here: str) -> None:
    """Write a file and read it back."""
    path, told = directory / f".probe-{secrets.token_hex(8)}", secrets.token_bytes(64)
    try:
        replace_file(file_calls_for(directory), path, told, 0o644)
        found = path.read_bytes()
        path.unlink()
    except OSError as error:
        raise StorageError(f"{directory}: cannot be written on {here}: {error}") from error
    if found != told:
        raise StorageError(f"{directory}: what {here} writes there is not what it reads")


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Hold a benchmark for the block, so that no second driver tells another truth about it.

    Raises:
        ClusterError: Another driver holds it.
        StorageError: The lock file cannot be made.
    """
    try:
        descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(f"{directory / _LOCK}: cannot be opened: {error}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                raise ClusterError(f"{directory}: another driver runs this benchmark; stop that one first") from None
            _log.warning("%s: locks do not work here, so a second driver would not be noticed: %s", directory, error)
        yield
    finally:
        os.close(descriptor)
