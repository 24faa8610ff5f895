"""Judges the files of a run that was killed and taken up again, by what its agents and its engine say themselves.

The agents' diary says what was run and what each agent was given; the engine's own log says whose each answer is.
Nothing here is believed because a record says so. It looks again and again at a run that nobody writes at that moment,
and remembers what it saw, so that nothing can be lost or rewritten between two looks.

A diary is JSON lines: ``{"what": "began" | "answer" | "broke" | "ended", "rollout": …}``, an answer with its ``id``.
The rows are tasks without repeats, so that a row's number is its task index, and the engine is asked with texts that
begin with the rollout id.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_ray.model_call_capture import CaptureStore
from gym_ray.model_call_capture.attachment import INCOMPLETE, WRITER_UNREACHABLE
from gym_ray.rollouts.row_states.failure_classes import failure_flags
from gym_ray.rollouts.run_files.frames import FrameKind, read_frames
from gym_ray.rollouts.run_files.ledger_log import rollout_digest
from gym_ray.rollouts.run_files.run_index import FILES
from gym_ray.rollouts.run_paths import OutputFile, RunPaths

__all__ = ["RunJudge", "Standing"]

_ROLLOUT = re.compile(r"(\d+)-0(?:-a(\d+))?")
_OF_A_DEAD_SERVER = frozenset({WRITER_UNREACHABLE, INCOMPLETE})
_MAY_NEVER_HAVE_RUN = frozenset({"worker_lost", "node_lost", "agent_request_failed"})


@dataclass(frozen=True, slots=True)
class Standing:
    """Where every row stands; each is in exactly one of the three.

    Attributes:
        done: Rows with a result.
        gated: Rows that are given up.
        pending: The rest.
        unrecorded: Attempts that began and have no record.
        torn: Bytes of half lines at the ends of the outputs.
        doubted: Results whose records say that a server was gone before it could be asked what it had recorded. What
            they hold is right all the same, or the judge would not have let them pass.
    """

    done: frozenset[int]
    gated: frozenset[int]
    pending: frozenset[int]
    unrecorded: frozenset[str]
    torn: int
    doubted: frozenset[str]

    def __str__(self) -> str:
        counts = f"{len(self.done)} done, {len(self.gated)} given up, {len(self.pending)} pending"
        doubts = f"{len(self.doubted)} results with a gap"
        return f"{counts}, {len(self.unrecorded)} attempts cut off, {self.torn} bytes torn, {doubts}"


@dataclass(frozen=True, slots=True)
class _Stored:
    file: OutputFile
    offset: int
    line: bytes
    record: dict[str, Any]
    rollout_id: str
    row: int
    attempt: int

    @property
    def gaps(self) -> set[str]:
        """Codes of what its capture may lack."""
        return {gap["code"] for gap in self.record["ng_model_call_capture"].get("gaps") or ()}


class RunJudge:
    """Judges one run.

    Args:
        paths: The run's files.
        capture_dir: Its captures.
        diary: What the agents wrote.
        rows: How many rows it has.
        asked: The engine's own log: by the id of each answer, the text that it answers.
        max_attempts: Recorded failures after which a row is given up.
    """

    def __init__(
        self,
        paths: RunPaths,
        capture_dir: Path,
        diary: Path,
        *,
        rows: int,
        asked: Mapping[str, str],
        max_attempts: int = 3,
    ) -> None:
        self._paths, self._store, self._diary = paths, CaptureStore(capture_dir), diary
        self._rows, self._asked, self._max_attempts = rows, asked, max_attempts
        self._seen: dict[OutputFile, tuple[int, bytes]] = {file: (0, _digest(b"")) for file in FILES}
        self._stored: dict[str, _Stored] = {}
        self._checked: set[str] = set()
        self._captures: dict[str, int] = {}  # answers that each rollout's capture was held against

    def diary(self) -> list[dict[str, Any]]:
        """Return the entries of the diary so far; one that is being written at this moment may be seen in part."""
        whole = self._diary.read_bytes().split(b"\n")[:-1] if self._diary.exists() else []
        return [json.loads(line) for line in whole]

    def look(self, *, whole: bool = False) -> Standing:
        """Judge the run as it stands.

        Args:
            whole: The run has ended in order: nothing may be torn, unfinished, or missing in the index, and everything
                is held against its capture again.

        Raises:
            AssertionError: Something is wrong; the message says what and where.
        """
        torn = sum(self._read(file) for file in FILES)
        diary = self.diary()
        began = Counter(entry["rollout"] for entry in diary if entry["what"] == "began")
        twice = [rollout_id for rollout_id, times in began.items() if times > 1]
        assert not twice, f"attempts that ran more than once: {twice}"
        if whole:
            self._checked.clear()
            self._captures.clear()
        self._check_evidence(diary)
        standing = self._standing(set(began), torn)
        self._check_ledger(set(began))
        self._check_index(whole=whole)
        if whole:
            assert not torn, f"{torn} bytes of half lines are left"
            assert not standing.pending, f"rows that are neither done nor given up: {sorted(standing.pending)}"
        return standing

    # What is stored.

    def _read(self, file: OutputFile) -> int:
        """Take in what was appended to an output since the last look; return the bytes of a half line at its end."""
        path = self._paths.output_of(file)
        data = path.read_bytes() if path.exists() else b""
        end, digest = self._seen[file]
        assert _digest(data[:end]) == digest, f"{path}: what was stored in its first {end} bytes has changed"
        lines = data[end:].split(b"\n")
        for line in lines[:-1]:
            self._take_in(file, end, line)
            end += len(line) + 1
        self._seen[file] = end, _digest(data[:end])
        return len(lines[-1])

    def _take_in(self, file: OutputFile, offset: int, line: bytes) -> None:
        place = f"{self._paths.output_of(file)}, byte {offset}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise AssertionError(f"{place}: a torn line: {line[:200]!r}") from error
        row, attempt = record["_ng_task_index"], record.get("_ng_attempt_index") or 0
        rollout_id = f"{row}-0" + (f"-a{attempt}" if attempt else "")
        captured = record["ng_model_call_capture"]["rollout_id"]
        assert captured == rollout_id, f"{place}: the record of {rollout_id} holds the capture of {captured}"
        assert (file == "failures") == ("_ng_failure_class" in record), f"{place}: {rollout_id} is in the wrong output"
        assert rollout_id not in self._stored, f"{place}: a second record of {rollout_id}"
        self._stored[rollout_id] = _Stored(file, offset, line, record, rollout_id, row, attempt)

    # Where the rows stand.

    def _standing(self, began: set[str], torn: int) -> Standing:
        records: dict[int, list[_Stored]] = defaultdict(list)
        for stored in self._stored.values():
            records[stored.row].append(stored)
        last_try: dict[int, int] = {}
        done, gated = set(), set()
        for row, of_row in records.items():
            of_row.sort(key=lambda stored: stored.attempt)
            failures = 0
            for stored in of_row:
                assert row not in last_try, f"{stored.rollout_id} was recorded after its row was done or given up"
                if stored.file == "main":
                    done.add(row)
                    last_try[row] = stored.attempt
                    continue
                failures += 1
                if failures >= self._max_attempts or stored.record.get("_ng_failure_terminal"):
                    gated.add(row)
                    last_try[row] = stored.attempt
        for rollout_id in began:
            row, attempt = _parsed(rollout_id)
            assert row < self._rows, f"{rollout_id} belongs to no row"
            assert attempt <= last_try.get(row, attempt), f"{rollout_id} ran after its row was done or given up"
        pending = set(range(self._rows)) - done - gated
        assert len(done) + len(gated) + len(pending) == self._rows, "a row is in two places, or in none"
        unrecorded = began - set(self._stored)
        doubted = {stored.rollout_id for stored in self._stored.values() if stored.file == "main" and stored.gaps}
        return Standing(
            frozenset(done), frozenset(gated), frozenset(pending), frozenset(unrecorded), torn, frozenset(doubted)
        )

    # What was said, against what is stored.

    def _check_evidence(self, diary: list[dict[str, Any]]) -> None:
        given: dict[str, list[str]] = defaultdict(list)
        began, ended = set(), set()
        for entry in diary:
            if entry["what"] == "answer":
                given[entry["rollout"]].append(entry["id"])
            began |= {entry["rollout"]} if entry["what"] == "began" else set()
            ended |= {entry["rollout"]} if entry["what"] == "ended" else set()
        for rollout_id, ids in given.items():
            if self._captures.get(rollout_id) != len(ids):
                self._check_capture(rollout_id, ids)
                self._captures[rollout_id] = len(ids)
        for rollout_id, stored in self._stored.items():
            if rollout_id in self._checked:
                continue
            self._check_record(stored, given[rollout_id], rollout_id in began, rollout_id in ended)
            self._checked.add(rollout_id)

    def _check_capture(self, rollout_id: str, given: list[str]) -> None:
        calls, damaged = self._store.read_available(rollout_id)
        kept = [(call["response"] or {}).get("id") for _, call in calls]
        for answer in given:
            assert answer in kept, f"{rollout_id}: {answer} was given to the agent and is not captured"
        self._check_owner(rollout_id, kept)
        assert not damaged, f"{rollout_id}: {damaged} damaged lines in its capture"

    def _check_record(self, stored: _Stored, given: list[str], began: bool, ended: bool) -> None:
        rollout_id, record = stored.rollout_id, stored.record
        attached = record["ng_model_call_capture"]
        calls = [call["response_id"] for call in attached["calls"]]
        self._check_owner(rollout_id, calls)
        if stored.file == "main":
            assert ended, f"{rollout_id}: a result of an agent that did not end"
            assert calls == given == record["answers"], f"{rollout_id}: given {given}, recorded {calls}"
            assert stored.gaps <= _OF_A_DEAD_SERVER, f"{rollout_id}: {attached['gaps']}"
            self._check_observed(record, given)
            return
        assert began or record["_ng_failure_class"] in _MAY_NEVER_HAVE_RUN, f"{rollout_id} failed and never began"
        kept = [name for name in calls if name in given]
        assert kept == given, f"{rollout_id}: given {given}, recorded {calls}"

    def _check_observed(self, record: dict[str, Any], given: list[str]) -> None:
        (invocation,) = record["ng_agent_observations"]["records"]
        calls = {call["model_call_id"]: call["response_id"] for call in record["ng_model_call_capture"]["calls"]}
        linked = [calls.get(ref["model_call_id"]) for ref in invocation["model_calls"]]
        assert linked == given, f"{record['ng_model_call_capture']['rollout_id']}: given {given}, linked {linked}"

    def _check_owner(self, rollout_id: str, answers: list[str | None]) -> None:
        for answer in answers:
            owner = None if answer is None else self._asked[answer].split()[0]
            assert owner in (None, rollout_id), f"{rollout_id} holds {answer}, the engine's answer to {owner}"

    # What the logs say, against both.

    def _check_ledger(self, began: set[str]) -> None:
        if not self._paths.ledger.exists():
            assert not began, "attempts ran without a ledger"
            return
        started = Counter(
            (frame.ordinal, frame.attempt, frame.digest)
            for frame in read_frames(self._paths.ledger)
            if frame.kind is FrameKind.STARTED
        )
        assert set(started.values()) <= {1}, "an attempt was started twice"
        for rollout_id in began | set(self._stored):
            row, attempt = _parsed(rollout_id)
            assert started[row, attempt, rollout_digest(rollout_id)], f"{rollout_id} was not durable as started"

    def _check_index(self, *, whole: bool) -> None:
        by_place = {(stored.file, stored.offset): stored for stored in self._stored.values()}
        named: set[tuple[OutputFile, int]] = set()
        for frame in read_frames(self._paths.index) if self._paths.index.exists() else ():
            place = FILES[frame.file], frame.offset
            stored = by_place.get(place)
            assert stored is not None, f"the index names {place}, where no record begins"
            assert place not in named, f"the index names {place} twice"
            named.add(place)
            said = (frame.ordinal, frame.attempt, frame.length, frame.digest, frame.flags)
            flags = failure_flags(stored.record) if stored.file == "failures" else 0
            is_so = (stored.row, stored.attempt, len(stored.line) + 1, _digest(stored.line), flags)
            assert said == is_so, f"the index says {said} of {stored.rollout_id}, which is {is_so}"
        missing = set(by_place) - named
        assert not (whole and missing), f"the index lacks {len(missing)} records: {sorted(missing)[:5]}"


def _parsed(rollout_id: str) -> tuple[int, int]:
    match = _ROLLOUT.fullmatch(rollout_id)
    assert match is not None, f"{rollout_id!r} is the id of no attempt"
    return int(match[1]), int(match[2] or 0)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
