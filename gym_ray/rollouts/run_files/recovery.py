"""Finds out what earlier processes left of a run, from frames where it can, from the outputs where it must (D50-D55).

The index and the ledger say almost everything in 128 bytes a finished rollout. Only what no frame names is read: the
records that were durable when a process died before it could log them, and everything where a run has no index.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from gym_ray import exact_json
from gym_ray.correlation import derive_rollout_id
from gym_ray.errors import InputError, RolloutIdError, StorageError
from gym_ray.rollouts.row_states.failure_classes import failure_flags
from gym_ray.rollouts.row_states.run_state import RunState
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.rows.row_keys import RowKeys, attempt_index, key_of
from gym_ray.rollouts.run_files.frames import Frame, FrameKind, read_blocks
from gym_ray.rollouts.run_files.index_coverage import Coverage
from gym_ray.rollouts.run_files.ledger_log import invalid_row_id, rollout_digest
from gym_ray.rollouts.run_files.record_reading import lines_between
from gym_ray.rollouts.run_files.run_index import FILES, IndexLog, finished_frame, read_index_blocks
from gym_ray.rollouts.run_files.run_log import written_line
from gym_ray.rollouts.run_paths import OutputFile, RunPaths, Written
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import sync_directory

__all__ = ["DamagedLine", "Recovered", "drop_index", "recover"]

_HELD_LINES = 1024
"""Records without a frame that are held while the ledger is read; with more of them the rows are read instead."""


@dataclass(frozen=True, slots=True)
class DamagedLine:
    """A line of an output that is no record of this run.

    Attributes:
        file: The output.
        offset: First byte.
        length: Bytes, line feed included.
        problem: What is wrong with it.
    """

    file: OutputFile
    offset: int
    length: int
    problem: str


@dataclass(slots=True)
class Recovered:
    """What was found.

    Attributes:
        state: The rows' state; not to be used while there are damaged lines.
        warnings: What is legal but surprising, one sentence each.
        damaged: Lines that are no records of this run.
        lost: Rows whose result the index named, and which have none.
    """

    state: RunState
    warnings: list[str] = field(default_factory=list)
    damaged: list[DamagedLine] = field(default_factory=list)
    lost: int = 0


@dataclass(frozen=True, slots=True)
class _Unlogged:
    """A record that no frame names."""

    written: Written
    key: str
    attempt_index: int
    id_digest: bytes | None


def drop_index(paths: RunPaths, calls: FileCalls | None = None) -> None:
    """Remove the index, durably: the next resume builds it from the outputs.

    Raises:
        StorageError: It cannot be removed.
    """
    calls = calls or FileCalls()
    try:
        calls.unlink(str(paths.index))
        sync_directory(calls, str(paths.directory))
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"{paths.index}: cannot be removed: {error}") from error


def recover(
    paths: RunPaths, rows: MaterialisedRows, *, read_all: bool = False, calls: FileCalls | None = None
) -> Recovered:
    """Return the state of a run whose files end with whole lines and frames; the run's lock is held.

    The index is whole when this returns: it was completed, or built again where it was missing or wrong. Records that
    were found without a frame have one now.

    Args:
        paths: The run's files.
        rows: Its rows.
        read_all: Read the outputs whole and build the index again, however good it looks.
        calls: How the operating system is called.

    Raises:
        InputError: Two rows have one key.
        StorageError: A file cannot be read or written, or the ledger is damaged or another run's.
    """
    return _Recovery(paths, rows, read_all, calls or FileCalls()).run()


class _Recovery:
    def __init__(self, paths: RunPaths, rows: MaterialisedRows, read_all: bool, calls: FileCalls) -> None:
        self._paths, self._rows, self._read_all, self._calls = paths, rows, read_all, calls
        self._found = Recovered(RunState.fresh(len(rows)))
        self._keys: RowKeys | None = None
        self._held: list[_Unlogged] = []
        self._frames: list[Frame] = []
        self._twice = 0
        self._named = bytearray()
        self._left_out = array("Q")

    def run(self) -> Recovered:
        holes = self._take_in_index()
        self._index = IndexLog(self._paths.index, calls=self._calls)
        with self._index:
            for file, start, end in holes:
                for unlogged in self._scan(file, start, end):
                    self._settle(unlogged)
            self._read_ledger()
            for unlogged in self._held:
                self._locate(unlogged)
            self._flush()
        self._found.lost = sum(was > now for was, now in zip(self._named, self._found.state.done, strict=False))
        if self._left_out:
            lines = f"lines that belong to no row: {len(self._left_out)}, the first at byte {self._left_out[0]}"
            self._warn(f"{self._paths.failures}: {lines}; they are left out of account")
        if self._twice:
            self._warn(f"{self._paths.output}: {self._twice} rows have more than one result; the last one counts")
        return self._found

    def _warn(self, sentence: str) -> None:
        self._found.warnings.append(sentence)

    # The index.

    def _take_in_index(self) -> list[tuple[OutputFile, int, int]]:
        """Apply the index and return what it does not name; without a good index that is everything."""
        sizes = {file: self._calls.stat(str(self._paths.output_of(file))).st_size for file in FILES}
        problem = "is missing" if any(sizes.values()) else ""
        if self._paths.index.exists():
            coverage = {file: Coverage() for file in FILES}
            problem = self._apply_index(coverage) or ""
            holes = None if problem else self._holes(coverage, sizes)
            if holes is None:
                problem = problem or "disagrees with the outputs, which are shorter or not the ones it was written for"
            elif not self._read_all:
                return holes
            drop_index(self._paths, self._calls)
            self._named = self._found.state.done
            self._found, self._twice = Recovered(RunState.fresh(len(self._rows))), 0
        if problem:
            self._warn(f"{self._paths.index}: {problem}; it was built again from the outputs")
        return [(file, 0, size) for file, size in sizes.items() if size]

    def _apply_index(self, coverage: dict[OutputFile, Coverage]) -> str | None:
        try:
            for block in read_index_blocks(self._paths.index, calls=self._calls):
                foreign = block["ordinal"][block["ordinal"] >= len(self._rows)]
                if len(foreign):
                    return f"names a row {foreign[0]} of {len(self._rows)}"
                for number, file in enumerate(FILES):
                    frames = block[block["file"] == number]
                    coverage[file].add_block(frames)
                    self._apply_block(file, frames)
        except StorageError as error:
            return f"is damaged ({error})"
        return None

    def _holes(
        self, coverage: dict[OutputFile, Coverage], sizes: dict[OutputFile, int]
    ) -> list[tuple[OutputFile, int, int]] | None:
        holes: list[tuple[OutputFile, int, int]] = []
        for file, covered in coverage.items():
            found = covered.holes(sizes[file])
            if found is None or not covered.last_is_there(self._paths.output_of(file), self._calls):
                return None
            holes += [(file, start, end) for start, end in found]
        return holes

    def _apply(self, frame: Frame) -> None:
        if FILES[frame.file] == "main":
            self._twice += self._found.state.note_done(frame.ordinal, frame.attempt)
        else:
            self._found.state.note_failure(frame.ordinal, frame.attempt, frame.flags)

    def _apply_block(self, file: OutputFile, frames: NDArray[Any]) -> None:
        if file == "main":
            self._twice += self._found.state.note_results(frames["ordinal"], frames["attempt"])
        else:
            self._found.state.note_failures(frames["ordinal"], frames["attempt"], frames["flags"])

    # What the index does not name.

    def _scan(self, file: OutputFile, start: int, end: int) -> Iterator[_Unlogged]:
        for offset, line in lines_between(self._paths.output_of(file), start, end, calls=self._calls):
            if not line.strip():
                continue
            record = exact_json.loads_object(line)
            key = None if record is None else key_of(record)
            if record is None:
                self._damaged(file, offset, line, "is no JSON object")
            elif key is None and file == "main":
                self._damaged(file, offset, line, "has no _ng_task_index or no _ng_rollout_index")
            elif key is None:
                self._left_out.append(offset)
            else:
                flags = failure_flags(record) if file == "failures" else 0
                written = written_line(file, offset, line, flags=flags)
                yield _Unlogged(written, key, attempt_index(record), _id_digest(record))

    def _damaged(self, file: OutputFile, offset: int, line: bytes, problem: str) -> None:
        self._found.damaged.append(DamagedLine(file, offset, len(line) + 1, problem))

    def _settle(self, unlogged: _Unlogged) -> None:
        """Hold a record until the ledger tells its row, or find the row by its key when there are too many to hold."""
        if self._keys is None and len(self._held) < _HELD_LINES:
            self._held.append(unlogged)
            return
        held, self._held = self._held, []
        for one in (*held, unlogged):
            self._locate(one)

    def _locate(self, unlogged: _Unlogged) -> None:
        if self._keys is None:
            self._keys = RowKeys(self._rows)
            self._found.warnings += self._keys.warnings
        row = self._keys.find(unlogged.key)
        written = unlogged.written
        if row is not None:
            self._log(row[0], max(0, unlogged.attempt_index - row[1]), written)
        elif written.file == "main":
            problem = f"belongs to no row of {self._rows.path} (task and rollout {unlogged.key})"
            self._found.damaged.append(DamagedLine(written.file, written.offset, written.length, problem))
        else:
            self._left_out.append(written.offset)

    def _log(self, ordinal: int, attempt: int, written: Written) -> None:
        frame = finished_frame(ordinal, attempt, written)
        self._apply(frame)
        self._frames.append(frame)
        if len(self._frames) >= _HELD_LINES:
            self._flush()

    def _flush(self) -> None:
        if self._frames:
            self._index.append_frames(self._frames)
            self._frames = []

    # The ledger.

    def _read_ledger(self) -> None:
        if not self._paths.ledger.exists():
            return
        wanted = {unlogged.id_digest: unlogged for unlogged in self._held if unlogged.id_digest is not None}
        several = len(self._held) - len(wanted)  # records of one attempt, or without an id: their rows are looked up
        matches: dict[int, tuple[Frame, _Unlogged]] = {}
        last_start: Frame | None = None
        for block in read_blocks(self._paths.ledger, calls=self._calls):
            foreign = (block["ordinal"] >= len(self._rows)) | (block["kind"] == FrameKind.FINISHED)
            if foreign.any():
                problem = f"a frame for row {block['ordinal'][foreign][0]} is not one of this run"
                raise StorageError(f"{self._paths.ledger}: {problem}")
            self._found.state.note_starts(block["ordinal"], block["attempt"])
            starts = block[block["kind"] == FrameKind.STARTED]
            if len(starts):
                last_start = Frame.of(starts[-1])
            if wanted and not several:
                for frame in _with_digests(starts, wanted):
                    unlogged = wanted[frame.digest]
                    matches.setdefault(id(unlogged), (frame, unlogged))
        if last_start is not None:
            self._check_start(last_start)
        for frame, _ in matches.values():
            self._check_start(frame)
        for frame, unlogged in matches.values():
            self._log(frame.ordinal, frame.attempt, unlogged.written)
        self._held = [unlogged for unlogged in self._held if id(unlogged) not in matches]

    def _check_start(self, frame: Frame) -> None:
        try:
            rollout_id = self._rows.attempt(frame.ordinal, frame.attempt).rollout_id
        except InputError:
            return  # a damaged row cannot tell; it is named when it is dispatched
        ids = (rollout_id, invalid_row_id(frame.ordinal, frame.attempt))  # the second: it was damaged, and was restored
        if frame.digest not in map(rollout_digest, ids):
            raise StorageError(
                f"{self._paths.ledger}: a start in it is not one of row {frame.ordinal + 1} of {self._rows.path}; "
                "the ledger belongs to other rows. Restore the files of one run, or start afresh"
            )


def _with_digests(frames: NDArray[Any], wanted: Container[bytes]) -> Iterator[Frame]:
    for at, digest in enumerate(frames["digest"].tolist()):
        if digest in wanted:
            yield Frame.of(frames[at])


def _id_digest(record: dict[str, Any]) -> bytes | None:
    try:
        rollout_id = derive_rollout_id(record)
    except RolloutIdError:
        return None
    return None if rollout_id is None else rollout_digest(rollout_id)
