"""Begins a run: one collector at a time, everything validated first, earlier results set aside and never deleted.

The order matters (D48). The manifest goes away first and comes back last: a directory with a manifest holds inputs and
outputs of one and the same run, whatever moment a crash chose.
"""

from __future__ import annotations

import fcntl
import filecmp
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import InputError, StorageError
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.rows.materialised import Materialisation, materialise_rows
from gym_ray.rollouts.rows.materialised_rows import build_row_index
from gym_ray.rollouts.run_files.run_term import begin_term
from gym_ray.rollouts.run_manifest import RunManifest, check_output, publish_manifest, read_manifest
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import sync_directory

__all__ = ["RunLock", "RunStart", "begin_run", "create_outputs", "remove_left_overs"]


_HOLDER_BYTES = 200
"""What the lock file says of its holder, filled up with blanks so that nothing of an earlier one is left."""


class RunLock:
    """The right to write one output, held until it is closed or its process dies (D58).

    Raises:
        StorageError: Another collector holds it, or the place cannot be written or locked.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        try:
            _make_directories(paths.directory)
            self._descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(f"{paths.lock}: the output's directory cannot be written: {error}") from error
        try:
            self._take()
        except BaseException:
            self.close()
            raise

    def _take(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = (
                os.pread(self._descriptor, _HOLDER_BYTES, 0).decode("ascii", "replace").strip() or "another process"
            )
            raise StorageError(
                f"{self.paths.output}: another collector ({holder}) writes this output; wait for it or choose another"
            ) from None
        except OSError as error:
            raise StorageError(f"{self.paths.lock}: the file system has no locks: {error}") from error
        mine = f"pid {os.getpid()} on {os.uname().nodename}".encode("ascii", "replace")[:_HOLDER_BYTES]
        try:
            os.pwrite(self._descriptor, mine.ljust(_HOLDER_BYTES), 0)
            begin_term(self._descriptor)
        except OSError as error:
            raise StorageError(f"{self.paths.lock}: cannot be written: {error}") from error

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the right back; safe to repeat."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _make_directories(directory: Path) -> None:
    """Create a directory and what leads there; every name that is new is durable."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_directory(FileCalls(), str(path.parent))


@dataclass(frozen=True, slots=True)
class RunStart:
    """A run that has begun: its files exist, empty but for the materialised rows.

    Attributes:
        run_id: 32 hexadecimal digits.
        materialisation: What the expansion wrote.
        set_aside: Where the results of an earlier run went, None when there were none.
    """

    run_id: str
    materialisation: Materialisation
    set_aside: Path | None


def begin_run(
    lock: RunLock,
    source: str | Path,
    options: RowOptions,
    *,
    claim: Callable[[Path], None] | None = None,
    captures: CaptureLocation | None = None,
    calls: FileCalls | None = None,
) -> RunStart:
    """Validate and expand the input, set earlier results aside, and begin a fresh run under a held lock (D48).

    Args:
        lock: The held lock.
        source: The input.
        options: How it becomes rows.
        claim: Called with the expanded rows before anything of an earlier run changes; what it raises ends the start.
        captures: Where model calls are captured; noted in the manifest, so that whoever joins again need not be told.
        calls: How the operating system is called.

    Raises:
        InputError: A row cannot be used, or the run's files would be those of another output; nothing of an earlier run
            has changed.
        StorageError: The place cannot be written.
    """
    paths, run_id, calls = lock.paths, uuid.uuid4().hex, calls or FileCalls()
    new_rows = paths.directory / f"materialised-{run_id}.tmp"
    try:
        _check_directory(paths)
        remove_left_overs(paths)
        materialisation = materialise_rows(Path(source), new_rows, options, run_id=run_id)
        if claim is not None:
            claim(new_rows)
        set_aside = _set_aside(paths, run_id, calls)
        create_outputs(paths, calls)
        new_rows.rename(paths.materialised)
        sync_directory(calls, str(paths.output.parent))
        build_row_index(paths)
        manifest = _manifest(paths, run_id, Path(source), materialisation, captures)
        publish_manifest(paths, manifest, calls=calls)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{paths.output}: the run cannot begin: {error}") from error
    return RunStart(run_id, materialisation, set_aside)


def _check_directory(paths: RunPaths) -> None:
    try:
        manifest = read_manifest(paths)
    except InputError:
        return  # a damaged one is set aside with the rest
    if manifest is not None:
        check_output(paths, manifest)


def remove_left_overs(paths: RunPaths) -> None:
    """Remove what a start that died left behind; the lock is held, so nobody is writing them."""
    for left_over in paths.directory.glob("*.tmp"):
        left_over.unlink()
    for output in (paths.output.resolve(), paths.failures.resolve()):
        for what in ("anew", "rejoin"):  # an output that was being replaced whole
            output.with_name(f".{output.name}.{what}.tmp").unlink(missing_ok=True)


def create_outputs(paths: RunPaths, calls: FileCalls) -> None:
    """Create the files that joiners append to where they are missing; their names are durable when this returns."""
    for path in (paths.output, paths.failures, paths.sources):
        calls.close(calls.open(str(path), os.O_RDWR | os.O_CREAT))
    for directory in (paths.directory, paths.output.parent):
        sync_directory(calls, str(directory))


def _set_aside(paths: RunPaths, run_id: str, calls: FileCalls) -> Path | None:
    _remove_public_copies(paths)
    old = (
        paths.manifest,
        paths.output,
        paths.failures,
        paths.aggregate_metrics,
        paths.metrics,
        paths.ledger,
        paths.index,
        paths.sources,
        paths.facts,
        paths.parts,
        paths.revoked,
        paths.damaged,
        paths.quality_summary,
        paths.rollout_verdicts,
        paths.rows_index,
        paths.materialised,
    )
    present = [path for path in old if path.exists()]
    if not present:
        return None
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    place = paths.previous / f"{stamp}-{run_id[:8]}"
    place.mkdir(parents=True)
    for path in present:
        path.rename(place / path.name)
        if path == paths.manifest:
            sync_directory(calls, str(paths.directory))
    for directory in (place, paths.previous, paths.directory, paths.output.parent):
        sync_directory(calls, str(directory))
    return place


def _remove_public_copies(paths: RunPaths) -> None:
    """Remove the copies of this run's health files; a file of another run of the same directory stays."""
    for own, public in (
        (paths.quality_summary, paths.public_quality_summary),
        (paths.rollout_verdicts, paths.public_rollout_verdicts),
    ):
        if own.exists() and public.exists() and filecmp.cmp(own, public, shallow=False):
            public.unlink()


def _manifest(
    paths: RunPaths, run_id: str, source: Path, materialisation: Materialisation, captures: CaptureLocation | None
) -> RunManifest:
    return RunManifest(
        run_id,
        datetime.now(UTC).isoformat(),
        str(source.absolute()),
        materialisation.rows,
        materialisation.tasks,
        materialisation.sha256,
        capture_dir="" if captures is None else str(captures),
        output=paths.output.name,
    )
