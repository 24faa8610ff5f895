"""``gym-ray eval health``: say whether the rollouts of a run can be trusted, and gate on it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gym_ray.cli.report import print_written, report_console
from gym_ray.cli.run_outputs import find_run
from gym_ray.errors import SettingsError
from gym_ray.evidence.health import CHECKS, SEVERITIES, unknown_checks
from gym_ray.rollouts.reports.health_files import HealthOutcome, health_of_records

__all__ = ["UNHEALTHY", "check_ids", "health", "print_health"]

UNHEALTHY = 3
"""Exit code when there are findings as bad as ``--fail-on`` says, or worse."""

_COLOURS = {"error": "red", "warning": "yellow"}


class FailOn(StrEnum):
    """How bad a finding must be to fail the command."""

    error = "error"
    warning = "warning"
    never = "never"


def health(
    place: Annotated[Path, typer.Argument(help="Records of a run, or its directory.", metavar="OUTPUT|DIR")],
    ignore: Annotated[str | None, typer.Option("--ignore", help="Checks that do not run.", metavar="ID[,ID]")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes that check records.")] = None,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="Exit with 3 when there is a finding this bad, or worse.")
    ] = FailOn.error,
) -> None:
    """Check every record of a run; write quality_summary.json and rollout_verdicts.jsonl."""
    ignored = check_ids((ignore or "").split(","), "--ignore")
    outcome = health_of_records(find_run(place), ignored=ignored, workers=workers)
    console = report_console()
    print_health(console, outcome)
    print_written(console, outcome.files)
    if (fail_on is not FailOn.never and outcome.errors) or (fail_on is FailOn.warning and outcome.warnings):
        raise typer.Exit(UNHEALTHY)


def check_ids(names: Sequence[str], where: str) -> frozenset[str]:
    """Return the ids of checks to ignore; blank names are left out.

    Raises:
        SettingsError: One names no check (D110).
    """
    ids = frozenset(name.strip() for name in names) - {""}
    if unknown := unknown_checks(ids):
        remedy = f"choose from {', '.join(CHECKS)}"
        raise SettingsError("command line", where, f"no such check: {', '.join(unknown)}", remedy)
    return ids


def print_health(console: Console, outcome: HealthOutcome, *, blind_spots: bool = True) -> None:
    """Print the verdicts, and one line for each check with findings; with ``blind_spots`` also where it saw nothing."""
    run = outcome.run
    verdicts, coverage = run["verdicts"], run["artifacts"]["coverage"]
    counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    console.print(f"[bold]{run['artifacts']['records']} rollouts[/]: {counted}")
    if not run["artifacts"]["records"]:
        console.print("[yellow]nothing was checked:[/] the output holds no records")
    table = Table("check", "severity", "findings", "unobserved", "first in", box=None)
    for name in ("findings", "unobserved"):
        next(column for column in table.columns if column.header == name).justify = "right"
    for check in (check for check in CHECKS if blind_spots or run["issues"][check]):
        _add_check(table, check, run["issues"][check], coverage[check], outcome.first_findings.get(check, ""))
    if table.row_count:
        console.print(table)
    if run["ignored_checks"]:
        console.print(f"[dim]ignored:[/] {', '.join(run['ignored_checks'])}")


def _add_check(table: Table, check: str, findings: int, coverage: dict[str, Any], first: str) -> None:
    if findings or coverage["unobserved"]:
        severity = SEVERITIES[check]
        shown = f"[{_COLOURS[severity]}]{severity}[/]" if findings else f"[dim]{severity}[/]"
        table.add_row(check, shown, str(findings or ""), str(coverage["unobserved"] or ""), escape(first))
