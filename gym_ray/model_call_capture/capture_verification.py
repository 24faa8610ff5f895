"""What a look at a place of captures found, for directories and object stores alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gym_ray.model_call_capture.findings import CaptureFinding

__all__ = ["CaptureVerification"]


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
