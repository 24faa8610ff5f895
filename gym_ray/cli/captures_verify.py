"""``gym-ray captures verify``: is everything in a capture directory as it should be, and if not, what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape

from gym_ray import exact_json
from gym_ray.cli.capture_places import CapturePlace, StorageOptions, capture_location
from gym_ray.model_call_capture.findings import CaptureFinding, CaptureVerification
from gym_ray.model_call_capture.segments.verification import verify_segments
from gym_ray.model_call_capture.verification.directory import verify_captures

__all__ = ["verify"]

_FOUND = 3
"""Exit code when there are errors."""


def verify(
    place: CapturePlace,
    storage_options: StorageOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check every capture file, segment, marker and open log: damage, repeated calls, lost calls, permissions.

    Each finding says where it is and what to do. Nothing is changed. Exit code 3 when there are errors, 0 else.
    """
    location = capture_location(place, storage_options)
    directory = location.directory
    verification = verify_segments(location) if directory is None else verify_captures(directory)
    if as_json:
        typer.echo(exact_json.dumps(_document(verification)))
    else:
        _print(Console(highlight=False, soft_wrap=True), verification)
    if verification.errors:
        raise typer.Exit(_FOUND)


def _document(verification: CaptureVerification) -> dict[str, Any]:
    document = asdict(verification)
    document["directory"] = str(verification.directory)
    document["findings"] = [{**finding, "file": str(finding["file"])} for finding in document["findings"]]
    return document


def _print(console: Console, verification: CaptureVerification) -> None:
    for finding in verification.findings:
        _print_finding(console, finding)
    hidden = verification.errors + verification.warnings - len(verification.findings)
    if hidden:
        console.print(f"and {hidden:,} more of the same kinds in the same files")
    console.print(
        f"{verification.files:,} files ({verification.empty_files:,} without a call), {verification.calls:,} calls in "
        f"{verification.lines:,} lines, {decimal(verification.size)}; {verification.markers:,} marked incomplete"
    )
    verdict = "[bold red]errors" if verification.errors else "[bold green]errors"
    console.print(f"{verdict}: {verification.errors:,}[/]  warnings: {verification.warnings:,}")


def _print_finding(console: Console, finding: CaptureFinding) -> None:
    colour = "red" if finding.severity == "error" else "yellow"
    place = str(finding.file) if finding.line is None else f"{finding.file}:{finding.line}"
    console.print(f"[{colour}]{finding.severity}[/] {escape(place)}: {escape(finding.what)} [dim]({finding.code})[/]")
    console.print(f"      {escape(finding.remedy)}")
