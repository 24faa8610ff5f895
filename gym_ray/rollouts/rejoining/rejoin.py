"""Joins the records of a run again with what their captures hold now: late calls, late marks (D166).

Nothing else of a record changes, and a record whose attachment stays the same stays byte for byte; only payloads of a
compact record that were lost are made again. Records are read and written one at a time; about 110 bytes a record are
held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.correlation import derive_rollout_id
from gym_ray.errors import DamagedRecordError, GymRayError, InputError, RolloutIdError, StorageError
from gym_ray.evidence.build import JoinOptions, has_no_reply
from gym_ray.evidence.compact import compacted, is_compact, without_payloads
from gym_ray.evidence.facts import RecordFacts, facts_line
from gym_ray.evidence.health import check_rollout
from gym_ray.evidence.perf import PERF_FIELD
from gym_ray.evidence.summary import summarise
from gym_ray.evidence.trajectory import TRAJECTORY_FIELD
from gym_ray.model_call_capture.attachment import ATTACHMENT_FIELD
from gym_ray.model_call_capture.captures import Captures
from gym_ray.model_call_capture.lines import CaptureSnapshot, without_deep_lines
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.rollouts.rejoining.rejoin_files import NewOutput, swap
from gym_ray.rollouts.rejoining.rejoin_index import PlacedFrames
from gym_ray.rollouts.rejoining.rejoin_record import RecordAgain, Rejoining, Window, is_captured
from gym_ray.rollouts.rejoining.rejoin_sources import Sources
from gym_ray.rollouts.reports.facts_files import FactsWriter
from gym_ray.rollouts.reports.facts_reading import read_facts
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_files.frames import Frame
from gym_ray.rollouts.run_files.parts_files import publish_parts, with_payloads
from gym_ray.rollouts.run_files.record_reading import line_number
from gym_ray.rollouts.run_files.run_index import FILES
from gym_ray.rollouts.run_files.run_log import line_digest, read_record, written_line
from gym_ray.rollouts.run_files.run_start import RunLock
from gym_ray.rollouts.run_manifest import read_manifest
from gym_ray.rollouts.run_paths import OutputFile, RunPaths, Written
from gym_ray.storage.calls import FileCalls

__all__ = ["KeptRecord", "RejoinReport", "rejoin"]

_SHOWN = 1000


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A record that stays as it is although its capture differs from what was attached.

    Attributes:
        place: Output and first byte of the record.
        rollout_id: Its attempt.
        reason: Why it was not joined again.
    """

    place: str
    rollout_id: str
    reason: str


@dataclass(slots=True)
class RejoinReport:
    """What joining again did.

    Attributes:
        records: Records that were looked at.
        rejoined: Those that got a new attachment.
        from_record: Of these, those for which nobody had kept what the reply brought, so that the earlier join was the
            start.
        unchanged: Those whose capture gives the attachment that they have.
        uncaptured: Those without an attachment of their own; captures are not attached where none was.
        kept_count: Those that stay although their capture differs; ``kept`` holds the first of them.
        unknown: Rollout ids that were asked for and are in no output.
        index_problem: Why no frame of the index could be used, so that the times of its records are unknown; None
            where it could be read, or there is none.
    """

    records: int = 0
    rejoined: int = 0
    from_record: int = 0
    unchanged: int = 0
    uncaptured: int = 0
    kept_count: int = 0
    kept: list[KeptRecord] = field(default_factory=list)
    unknown: tuple[str, ...] = ()
    index_problem: str | None = None


def rejoin(
    paths: RunPaths,
    captures: Captures,
    *,
    rollout_ids: Collection[str] | None = None,
    options: JoinOptions,
    written_calls: Callable[[str], WrittenCalls],
    calls: FileCalls | None = None,
) -> RejoinReport:
    """Join the records of a run again, under its lock; a crash at any point leaves every output old or new.

    Args:
        paths: The run's files.
        captures: Its captures.
        rollout_ids: Attempts to join again; None for all.
        options: How evidence is built. Whether a record is compact stays as it is.
        written_calls: Asks the servers about one rollout. Called only where they could know more than the record says.
        calls: How the operating system is called.

    Raises:
        InputError: There is no such output, a line of it is damaged or torn, or the manifest does not tell when the run
            began; nothing has changed.
        StorageError: A run is writing the output, or a file cannot be read or written.
    """
    if not paths.output.is_file():
        raise InputError(paths.output, 0, "", "there is no such output; name the records of a run")
    with RunLock(paths), ExitStack() as stack:
        again = _Rejoin(paths, captures, options, written_calls, calls or FileCalls(), stack)
        return again.run(None if rollout_ids is None else frozenset(rollout_ids))


class _Rejoin:
    def __init__(
        self,
        paths: RunPaths,
        captures: Captures,
        options: JoinOptions,
        written_calls: Callable[[str], WrittenCalls],
        calls: FileCalls,
        stack: ExitStack,
    ) -> None:
        self._paths, self._captures, self._options = paths, captures, options
        self._calls, self._stack = calls, stack
        self._report = RejoinReport()
        self._rejoining = Rejoining(stack.enter_context(Sources(paths.sources)), written_calls, options)
        self._frames = PlacedFrames(paths.index)
        self._report.index_problem = self._frames.problem
        self._index: bytearray | None = bytearray()
        self._rows: MaterialisedRows | None = None
        self._begun = _begun_at(paths)
        self._old_facts = sorted(paths.facts.glob("*.jsonl"))
        self._facts = FactsWriter(paths)
        self._keeps_facts = False
        stack.callback(self._close_facts)
        self._seen: set[str] = set()

    def run(self, wanted: frozenset[str] | None) -> RejoinReport:
        files = [file for file in FILES if self._paths.output_of(file).is_file()]
        for file in files:
            _check_tail(self._paths.output_of(file))
        outputs = [self._rewritten(file, wanted) for file in files]
        self._report.unknown = tuple(sorted((wanted or frozenset()) - self._seen))
        if not self._report.rejoined:
            return self._report
        self._facts.close()
        for output in outputs:
            output.sync()
        swap(self._paths, outputs, None if self._index is None else bytes(self._index), self._old_facts, self._calls)
        self._keeps_facts = True
        return self._report

    def _close_facts(self) -> None:
        self._facts.close()
        if not self._keeps_facts:
            self._facts.path.unlink(missing_ok=True)

    def _rewritten(self, file: OutputFile, wanted: frozenset[str] | None) -> NewOutput:
        output = NewOutput(self._paths.output_of(file), self._calls)
        self._stack.callback(output.close)
        for written, facts in read_facts(self._paths, file=file):
            self._report.records += 1
            line, frame = self._read(written), self._frames.find(written)
            new_line, new_facts = self._joined(line, written, frame, facts, wanted)
            flags = None if frame is None else frame.flags
            new = written_line(file, output.append(new_line), new_line, flags=flags)
            self._note(frame, new)
            if new_facts is not None:
                self._facts.append(new, new_facts)
        return output

    def _read(self, written: Written) -> bytes:
        line = read_record(self._paths, written)
        if line_digest(line) != written.digest:
            path = self._paths.output_of(written.file)
            problem = (
                f"it was changed since it was written; restore it, or remove {self._paths.index} to take it as it is"
            )
            raise InputError(path, line_number(path, written.offset), "", problem)
        return line

    def _note(self, frame: Frame | None, new: Written) -> None:
        if frame is None:
            self._index = None  # a resume builds it, and says so
        elif self._index is not None:
            self._index += replace(frame, offset=new.offset, length=new.length, digest=new.digest).encode()

    def _joined(
        self, line: bytes, written: Written, frame: Frame | None, facts: RecordFacts, wanted: frozenset[str] | None
    ) -> tuple[bytes, bytes | None]:
        """Return the line and its facts; facts are None where nobody has looked at the record yet."""
        record = exact_json.loads_object(line) or {}
        rollout_id = _rollout_id(record)
        if rollout_id is not None and (wanted is None or rollout_id in wanted):
            if wanted is not None:
                self._seen.add(rollout_id)
            again = self._again(record, rollout_id, written, frame, facts)
            if again is not None:
                return again
        elif rollout_id is None:
            self._report.uncaptured += 1
        kept = {"reduced": facts.reduced, "summary": facts.summary, "verdict": facts.verdict}
        return line, exact_json.dumps(kept) if facts.verdict else None

    def _again(
        self, record: dict[str, Any], rollout_id: str, written: Written, frame: Frame | None, facts: RecordFacts
    ) -> tuple[bytes, bytes] | None:
        report = self._report
        if not is_captured(record, rollout_id):
            report.uncaptured += 1
            return None
        try:
            whole, lost = self._whole(record)
        except DamagedRecordError as error:
            self._count_kept(RecordAgain(None, str(error)), written, rollout_id)
            return None
        latency_ms, snapshot = _latency_ms(whole, facts), self._captures.snapshot(rollout_id, None)
        task, window = self._task_of(whole, frame), Window(self._begun, None if frame is None else frame.at_us / 1e6)

        def joined(capture: CaptureSnapshot) -> tuple[RecordAgain, tuple[bytes, bytes] | None]:
            result = self._rejoining.join_again(
                whole, rollout_id, capture, task=task, window=window, latency_ms=latency_ms, lost=lost
            )
            if result.record is None:
                return result, None
            new_facts = self._facts_of(result.record, rollout_id, latency_ms, facts)
            return result, (self._stored(result.record, rollout_id, compact=is_compact(record)), new_facts)

        try:
            result, new = joined(snapshot)
        except ValueError as error:
            if isinstance(error, GymRayError):
                raise
            result, new = joined(without_deep_lines(snapshot))  # something nests too deeply to be stored
        if new is None:
            self._count_kept(result, written, rollout_id)
            return None
        report.rejoined += 1
        report.from_record += result.built_from == "record"
        return new

    def _whole(self, record: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Return a record with its payloads; without them, and why, where its parts cannot be read.

        Raises:
            DamagedRecordError: Its own description of them is damaged.
        """
        try:
            return with_payloads(self._paths, record), None
        except (StorageError, DamagedRecordError, RolloutIdError) as error:
            return without_payloads(record, str(self._paths.output)), str(error)

    def _count_kept(self, result: RecordAgain, written: Written, rollout_id: str) -> None:
        if result.kept_because is None:
            self._report.unchanged += 1
            return
        self._report.kept_count += 1
        if len(self._report.kept) < _SHOWN:
            place = f"{self._paths.output_of(written.file)}, byte {written.offset}"
            self._report.kept.append(KeptRecord(place, rollout_id, result.kept_because))

    def _stored(self, record: dict[str, Any], rollout_id: str, *, compact: bool) -> bytes:
        """Return the record's line; its parts are durable, and the earlier ones stay for the earlier record."""
        if compact:
            record, parts = compacted(record)
            if parts:
                publish_parts(self._paths, rollout_id, parts, calls=self._calls)
        return exact_json.dumps(record)

    def _facts_of(
        self, record: dict[str, Any], rollout_id: str, latency_ms: float | None, earlier: RecordFacts
    ) -> bytes:
        attachment = record[ATTACHMENT_FIELD]
        trusted = not has_no_reply(record)
        verdict = check_rollout(record, ignored=self._options.ignored_checks, trusted=trusted)
        summary = None if latency_ms is None else summarise(record, attachment, rollout_id, latency_ms)
        if summary is not None and earlier.summary.get("token_mask_reasons") is None:
            summary = replace(summary, token_mask_reasons=None)  # of an agent that took no part in training
        return facts_line(record, attachment, verdict, summary=summary)

    def _task_of(self, record: Mapping[str, Any], frame: Frame | None) -> Mapping[str, Any]:
        """Return what names the task: the earlier trajectory, else the row, else the record."""
        trajectory = record.get(TRAJECTORY_FIELD)
        if isinstance(trajectory, dict) and isinstance(trajectory.get("task_id"), str):
            return {"task_id": trajectory["task_id"]}
        if frame is not None and self._paths.materialised.is_file():
            if self._rows is None:
                self._rows = self._stack.enter_context(MaterialisedRows.of(self._paths))
            return exact_json.loads_object(self._rows.read(frame.ordinal)) or {}
        return record


def _rollout_id(record: Mapping[str, Any]) -> str | None:
    try:
        return derive_rollout_id(record)
    except RolloutIdError:
        return None


def _latency_ms(record: Mapping[str, Any], facts: RecordFacts) -> float | None:
    perf = record.get(PERF_FIELD)
    for value in (perf.get("total_latency_ms") if isinstance(perf, dict) else None, facts.summary.get("latency_ms")):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    return None


def _begun_at(paths: RunPaths) -> float | None:
    manifest = read_manifest(paths)
    if manifest is None:
        return None
    try:
        return datetime.fromisoformat(manifest.begun_at).timestamp()
    except (ValueError, OverflowError) as error:
        problem = f"{manifest.begun_at!r} is no time of ISO 8601, which tells late calls from others; restore the file"
        raise InputError(paths.manifest, 0, "begun_at", problem) from error


def _check_tail(path: Path) -> None:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        if size and file.read(1) != b"\n":
            problem = "it ends in the middle of a line; resume the run first, which repairs it"
            raise InputError(path, 0, "", problem)
