"""What a look at a place of captures found: where, what, and what to do about it; bounded, whatever the damage is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["CaptureFinding", "CaptureVerification", "Findings", "Severity"]

Severity = Literal["error", "warning"]

_SHOWN_OF_A_KIND = 20
_SHOWN = 10_000


@dataclass(frozen=True, slots=True)
class CaptureFinding:
    """One thing that is not as it should be.

    Attributes:
        severity: ``error`` when evidence is lost, damaged or ambiguous; ``warning`` when it may be.
        code: What kind of thing.
        file: Path of the file.
        line: Line of it, counted from 1, None for the file as a whole.
        what: What is wrong.
        remedy: What to do.
    """

    severity: Severity
    code: str
    file: Path
    line: int | None
    what: str
    remedy: str


class Findings:
    """Collects findings; of a kind that fills a file, only the first ones are kept, and the others counted."""

    def __init__(self) -> None:
        self._kept: list[CaptureFinding] = []
        self._of_a_kind: Counter[tuple[Path, str]] = Counter()
        self._counts: Counter[Severity] = Counter()

    def add(
        self, severity: Severity, code: str, file: Path, what: str, remedy: str, *, line: int | None = None
    ) -> None:
        """Take one finding."""
        self._counts[severity] += 1
        self._of_a_kind[file, code] += 1
        if self._of_a_kind[file, code] <= _SHOWN_OF_A_KIND and len(self._kept) < _SHOWN:
            self._kept.append(CaptureFinding(severity, code, file, line, what, remedy))

    def forget_kinds(self) -> None:
        """End a file: its counters are not needed any more."""
        self._of_a_kind.clear()

    def count(self, severity: Severity) -> int:
        """Return how many there were, kept or not."""
        return self._counts[severity]

    def kept(self) -> tuple[CaptureFinding, ...]:
        """Return those that were kept, by file and line."""
        return tuple(sorted(self._kept, key=lambda finding: (str(finding.file), finding.line or 0, finding.code)))


@dataclass(frozen=True, slots=True)
class CaptureVerification:
    """What a place of captures holds, and what is wrong with it.

    Attributes:
        directory: The directory, or the URL of an object store without credentials.
        files: Capture files; segments of an object store.
        empty_files: Those without a line: cleared, or of rollouts that made no call.
        lines: Lines that are not blank.
        calls: Lines that are call records.
        size: Bytes of the capture files.
        markers: Rollouts that are marked as having lost a record.
        errors: How many findings are errors.
        warnings: How many are warnings.
        findings: The findings by file and line; of a kind that fills a file, the first ones.
    """

    directory: Path | str
    files: int
    empty_files: int
    lines: int
    calls: int
    size: int
    markers: int
    errors: int
    warnings: int
    findings: tuple[CaptureFinding, ...]
