"""Takes up a run where earlier processes left it (D49-D56): its rows are the truth, what is done stays done."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gym_ray.errors import InputError, StorageError
from gym_ray.rollouts.row_states.run_state import RunState
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_files.ledger_log import LedgerLog
from gym_ray.rollouts.run_files.lock_wait import LOCK_TIMEOUT_S
from gym_ray.rollouts.run_files.record_file import RecordFile
from gym_ray.rollouts.run_files.record_reading import line_number
from gym_ray.rollouts.run_files.recovery import Recovered, recover
from gym_ray.rollouts.run_files.run_start import RunLock, create_outputs, remove_left_overs
from gym_ray.rollouts.run_files.salvage import damaged_frames, set_damaged_lines_aside, take_damaged_frames_out
from gym_ray.rollouts.run_manifest import RunManifest, check_output, publish_manifest, read_manifest
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.storage.calls import FileCalls

__all__ = ["RunResume", "can_resume", "opened_rows", "resume_run"]


@dataclass(frozen=True, slots=True)
class RunResume:
    """A run that was taken up again: its files are whole, and its index names every record.

    Attributes:
        run_id: 32 hexadecimal digits; the id that the run began with, a new one where it had no manifest.
        rows: Materialised rows.
        state: What is known of each row.
        warnings: What is legal but surprising, one sentence each.
    """

    run_id: str
    rows: int
    state: RunState
    warnings: tuple[str, ...]


def can_resume(paths: RunPaths) -> bool:
    """Whether there is a run to take up: its materialised rows and its main output exist (D49)."""
    return paths.materialised.is_file() and paths.output.is_file()


def resume_run(
    lock: RunLock,
    *,
    salvage: bool = False,
    claim: Callable[[MaterialisedRows, RunState], None] | None = None,
    calls: FileCalls | None = None,
) -> RunResume:
    """Repair what a crash left torn and find out what is done, failed and pending; no record is lost or rewritten.

    What is refused for its rows is refused before anything changes. A later refusal leaves torn tails cut off and the
    index complete or built again, and nothing that a resume of the restored files would take for something else.

    A run of the peer, which has no run directory, is taken up by reading its outputs (D49). Reads at most 128 bytes for
    each finished rollout and 1 MiB, plus the records that were durable and not yet logged when a process died.

    Args:
        lock: The held lock.
        salvage: Move lines of the outputs that are no records of this run, and damaged frames, to
            ``<stem>.run/damaged`` and go on, and read all of the outputs to find them; without it they end the start
            where they are met (D51).
        claim: Called with rows and state before this returns; what it raises ends the start.
        calls: How the operating system is called.

    Raises:
        InputError: There is nothing to resume, the rows are not those of the run, or a line is no record: the message
            names file and line.
        StorageError: A file cannot be read or written, or the ledger is damaged or another run's.
    """
    paths, calls = lock.paths, calls or FileCalls()
    if not can_resume(paths):
        missing = paths.output if paths.materialised.is_file() else paths.materialised
        raise InputError(missing, 0, "", "there is no run to resume here: the file is missing; start the run afresh")
    with opened_rows(paths) as rows:
        known = read_manifest(paths)
        manifest, warnings = known or _new_manifest(paths, rows), _made_whole(paths, calls)
        if known is not None and not paths.ledger.exists() and calls.stat(str(paths.output)).st_size:
            warnings.append(f"{paths.ledger}: is missing; attempts that were killed without a record may run again")
        manifest = _with_whole_ledger(paths, manifest, salvage, calls)
        found = _recover(paths, rows, salvage, known is not None, calls)
        _allow_for_lost_starts(found.state, manifest.ledger_frames_lost)
        if claim is not None:
            claim(rows, found.state)
        # Last, since a start that is refused must neither bind the outputs to rows that are not theirs, nor hide that
        # there was no ledger.
        LedgerLog(paths.ledger, calls=calls).close()
        if not paths.manifest.exists():
            publish_manifest(paths, manifest, calls=calls)
        return RunResume(manifest.run_id, len(rows), found.state, (*warnings, *found.warnings))


def opened_rows(paths: RunPaths) -> MaterialisedRows:
    """Open the rows of a run, and refuse those that are not the ones that its manifest names; nothing has changed.

    Raises:
        InputError: The rows cannot be used, or are another run's.
        StorageError: A file cannot be read, or the index of the rows not written.
    """
    manifest = read_manifest(paths)
    if manifest is not None:
        check_output(paths, manifest)
    rows = MaterialisedRows.of(paths)
    if manifest is None or manifest.rows == len(rows):
        return rows
    problem = f"the run has {manifest.rows} rows, but {paths.materialised} has {len(rows)}"
    rows.close()
    raise InputError(paths.manifest, 0, "rows", f"{problem}; restore the files of one run, or start afresh")


def _new_manifest(paths: RunPaths, rows: MaterialisedRows) -> RunManifest:
    run_id, found_at = uuid.uuid4().hex, datetime.now(UTC).isoformat()
    return RunManifest(run_id, found_at, "", len(rows), None, rows.sha256, output=paths.output.name)


def _made_whole(paths: RunPaths, calls: FileCalls) -> list[str]:
    """Create what is missing and repair what a crash left torn; return one sentence about each repair."""
    try:
        remove_left_overs(paths)
        create_outputs(paths, calls)
    except OSError as error:
        raise StorageError(f"{paths.output}: the run cannot be resumed: {error}") from error
    return _repair(paths, calls)


def _repair(paths: RunPaths, calls: FileCalls) -> list[str]:
    """Make every file of lines end with a whole line (D50)."""
    told = []
    for path in (paths.output, paths.failures, paths.sources):
        file, before = RecordFile(path, calls, lock_timeout_s=LOCK_TIMEOUT_S), calls.stat(str(path)).st_size
        try:
            after = file.repair()
        finally:
            file.close()
        if after < before:
            told.append(f"{path}: a half line of {before - after} bytes at its end was cut off")
        elif after > before:
            told.append(f"{path}: its last record lacked a line feed and has one now")
    return told


def _with_whole_ledger(paths: RunPaths, manifest: RunManifest, salvage: bool, calls: FileCalls) -> RunManifest:
    """Cut a torn tail off the ledger; with ``salvage``, take damaged frames out of its middle and count them."""
    lost = damaged_frames(paths.ledger) if salvage else 0
    if lost:
        manifest = dataclasses.replace(manifest, ledger_frames_lost=manifest.ledger_frames_lost + lost)
        publish_manifest(paths, manifest, calls=calls)  # first: a frame may be counted twice, but never forgotten
        take_damaged_frames_out(paths.ledger, paths, calls=calls)
    if paths.ledger.exists():
        LedgerLog(paths.ledger, calls=calls).close()
    return manifest


def _recover(
    paths: RunPaths, rows: MaterialisedRows, salvage: bool, rows_are_known: bool, calls: FileCalls
) -> Recovered:
    # Without a manifest nothing says that the index counts in these rows. And a salvage does not trust it: it would
    # keep damage from being seen that came after its frames.
    found = recover(paths, rows, read_all=salvage or not rows_are_known, calls=calls)
    told = []
    if found.lost:
        told.append(f"{paths.output}: results that were stored and are gone: {found.lost}; their rows run again")
    if found.damaged and salvage:
        told += set_damaged_lines_aside(paths, found.damaged, calls=calls)
        found = recover(paths, rows, calls=calls)
    if found.damaged:
        raise _refusal(paths, found)
    found.warnings[:0] = told
    return found


def _refusal(paths: RunPaths, found: Recovered) -> InputError:
    first, damaged = found.damaged[0], found.damaged
    path: Path = paths.output_of(first.file)
    more = f" ({len(damaged) - 1} more such lines)" if len(damaged) > 1 else ""
    problem = f"the line {first.problem}{more}; restore the file, or resume with --salvage to set such lines aside"
    if found.lost:  # said here, since the index that named them is built again by now
        problem += f". Results that its index named and that are gone: {found.lost}"
    return InputError(path, line_number(path, first.offset), "", problem)


def _allow_for_lost_starts(state: RunState, lost: int) -> None:
    """Let every unfinished row skip as many attempts as starts were lost: each may have been its own."""
    if lost:
        for ordinal, done in enumerate(state.done):
            if not done:
                state.note_started(ordinal, state.attempts[ordinal] + lost - 1)
