"""Verifies one capture file, line by line, in the memory of its longest line."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.model_call_capture.findings import Findings
from gym_ray.model_call_capture.records import ModelCallRecord, build_record
from gym_ray.storage.calls import FileCalls

__all__ = ["FileFacts", "call_ids_of", "verify_file"]

_CHUNK = 1 << 20
_LOCK_TIMEOUT_S = 30.0
_POLL_S = 0.02
_JOIN_AGAIN = "the rollout's record says how many lines are unreadable; run the rollout again if it matters"


@dataclass(slots=True)
class FileFacts:
    """What one file holds.

    Attributes:
        lines: Lines that are not blank.
        calls: Lines that are call records.
        size: Bytes that were looked at.
    """

    lines: int = 0
    calls: int = 0
    size: int = 0


def verify_file(
    path: Path, findings: Findings, note: Callable[[str], None], *, calls: FileCalls | None = None
) -> FileFacts:
    """Look at every line of a capture file; what is wrong goes to ``findings``.

    What a living writer appends in the meantime is left out.

    Args:
        path: The file.
        findings: Where problems go.
        note: Told the id of every call that has one.
        calls: How the operating system is called.

    Raises:
        OSError: The file cannot be read.
    """
    facts = FileFacts()
    with _opened(path, calls or FileCalls()) as lines:
        facts.size = lines.size
        for number, line, ended in lines.all():
            if line and not line.isspace():
                facts.lines += 1
                if _verify_line(path, number, line, ended, findings, facts.lines - 1, note):
                    facts.calls += 1
        if lines.was_cut:
            remedy = "a run cleared it, or somebody cut it; verify again when no run uses the directory"
            findings.add("warning", "changed_while_read", path, "the file got shorter while it was read", remedy)
    return facts


def call_ids_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line number and id of every readable call of a file.

    Raises:
        OSError: The file cannot be read.
    """
    with _opened(path, FileCalls()) as lines:
        for number, line, _ in lines.all():
            name = (exact_json.loads_object(line) or {}).get("model_call_id") if line else None
            if isinstance(name, str):
                yield number, name


def _verify_line(
    path: Path, number: int, line: bytes, ended: bool, findings: Findings, index: int, note: Callable[[str], None]
) -> bool:
    try:
        exchange = exact_json.loads(line)
    except ValueError as error:
        _add_damage(path, number, line, ended, findings, str(error))
        return False
    if not ended:
        remedy = "the next writer ends it; nothing is lost"
        findings.add("warning", "line_without_end", path, "a whole record without a line feed", remedy, line=number)
    if not isinstance(exchange, dict):
        kind = type(exchange).__name__
        findings.add("error", "damaged_line", path, f"JSON, but a {kind}, no object", _JOIN_AGAIN, line=number)
        return False
    try:
        record = build_record(exchange, index)
    except ValueError as error:
        problem = _first_problem(error)
        findings.add("error", "no_call_record", path, f"no model call can be read: {problem}", _JOIN_AGAIN, line=number)
        return False
    _verify_record(path, number, exchange, record, findings)
    if record.model_call_id:
        note(record.model_call_id)
    return True


def _add_damage(path: Path, number: int, line: bytes, ended: bool, findings: Findings, problem: str) -> None:
    if not ended:
        findings.add(
            "error",
            "torn_line",
            path,
            f"the last line ends after {len(line)} bytes: its writer died, or its disk was full",
            "the next writer begins a new line; run the rollout again if the call matters",
            line=number,
        )
        return
    what = "holds zero bytes" if b"\0" in line else f"no JSON ({problem})"
    findings.add("error", "damaged_line", path, what, _JOIN_AGAIN, line=number)


def _first_problem(error: ValueError) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return ": ".join(lines[1:3]) if len(lines) > 2 else lines[0]  # pydantic: a title, then field and problem


def _verify_record(
    path: Path, number: int, exchange: dict[str, Any], record: ModelCallRecord, findings: Findings
) -> None:
    if not record.model_call_id:
        what, remedy = "the call has no id", "no observation can refer to it; ask the producer for `model_call_id`"
        findings.add("warning", "no_call_id", path, what, remedy, line=number)
    for field in ("latency_ms", "latency_ttft_ms"):
        value = exchange.get(field)
        if isinstance(value, int | float) and value < 0:
            remedy = "its rollout has no trajectory; correct the producer's clock and run the rollout again"
            findings.add("error", "negative_latency", path, f"{field} is {value}", remedy, line=number)
    if record.started_at and record.completed_at and record.completed_at < record.started_at:
        what = "completed_at lies before started_at"
        remedy = "the machine's clock was set back; trust latency_ms, not the times"
        findings.add("warning", "clock_set_back", path, what, remedy, line=number)


class _Lines:
    """The lines that were there when the file was opened."""

    def __init__(self, fd: int, size: int, calls: FileCalls) -> None:
        self._fd, self.size, self._calls = fd, size, calls
        self.was_cut = False

    def all(self) -> Iterator[tuple[int, bytes, bool]]:
        """Yield number, bytes without the line feed, and whether there was a line feed."""
        number, offset = 1, 0
        rest: list[bytes] = []
        while offset < self.size:
            chunk = self._calls.pread(self._fd, min(_CHUNK, self.size - offset), offset)
            if not chunk:
                self.was_cut = True
                return
            offset += len(chunk)
            *whole, tail = chunk.split(b"\n")
            for piece in whole:
                yield number, b"".join([*rest, piece]), True
                number, rest = number + 1, []
            rest.append(tail)
        if any(rest):
            yield number, b"".join(rest), False


@contextmanager
def _opened(path: Path, calls: FileCalls) -> Iterator[_Lines]:
    fd = calls.open(str(path), os.O_RDONLY)
    try:
        # An append holds the lock until it is whole, so under it the size is that of whole lines.
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while not calls.lock_shared(fd, wait=False):
            if time.monotonic() >= deadline:
                raise OSError(errno.EAGAIN, f"a writer has held its lock for more than {_LOCK_TIMEOUT_S:.3g} s")
            time.sleep(_POLL_S)
        size = calls.fstat(fd).st_size
        calls.unlock(fd)
        yield _Lines(fd, size, calls)
    finally:
        calls.close(fd)
