"""``gym-ray doctor``: can captures be kept at this place, seen from every node, and how would they be?"""

from __future__ import annotations

import os
import secrets
from dataclasses import asdict
from typing import Annotated, Literal, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gym_ray import exact_json
from gym_ray.capture_location import CaptureLocation
from gym_ray.cli.capture_places import CapturePlace, StorageOptions, capture_location
from gym_ray.cli.runtime import Interrupts, ray_session
from gym_ray.errors import SettingsError
from gym_ray.storage.shared_place.examining import examine
from gym_ray.storage.shared_place.judging import judge
from gym_ray.storage.shared_place.processes import process_nodes
from gym_ray.storage.shared_place.report import PlaceReport, Severity

__all__ = ["doctor"]

_ALONE = "3 processes of this machine (no cluster: set RAY_ADDRESS to ask every node)"
Writer = Literal["direct", "hosted"]


def doctor(
    place: CapturePlace,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    writer: Annotated[str, typer.Option(help="Who will write captures: direct or hosted.")] = "direct",
    patience_s: Annotated[
        float, typer.Option("--patience", min=0.1, help="Seconds that a node looks for what another one did.")
    ] = 5.0,
    storage_options: StorageOptions = None,
) -> None:
    """Check from every node whether a place can keep captures, and say how they would be kept there.

    With RAY_ADDRESS, one process on each node of that cluster looks; without, three processes of this machine. They
    write, sync, lock, rename and list files of their own, each looks for what the others did, and everything is taken
    away again. Exit code 0 when the place is usable, 1 when it is not.
    """
    if writer not in ("direct", "hosted"):
        raise SettingsError("--writer", writer, "there is no such writer", "use direct or hosted")
    report = _asked(capture_location(place, storage_options), cast("Writer", writer), patience_s)
    if as_json:
        typer.echo(exact_json.dumps(asdict(report)))
    else:
        _print(Console(highlight=False, soft_wrap=True), report)
    if not report.usable:
        raise typer.Exit(1)


def _asked(location: CaptureLocation, writer: Writer, patience_s: float) -> PlaceReport:
    run = secrets.token_hex(6)
    if os.environ.get("RAY_ADDRESS"):
        with ray_session(f"gym-ray/doctor-{run}") as interrupts:
            from gym_ray.actors.doctor import check_place  # Ray is loaded where a cluster is asked

            return check_place(location, writer=writer, patience_s=patience_s, on_wait=interrupts.check)
    interrupts = Interrupts()
    with interrupts.counted(), process_nodes(location.where, location.storage_options, run) as nodes:
        evidence = examine(
            str(location),
            nodes,
            is_store=location.directory is None,
            watchers=_ALONE,
            patience_s=patience_s,
            on_wait=interrupts.check,
        )
    return judge(evidence, writer)


def _print(console: Console, report: PlaceReport) -> None:
    console.print(f"[bold]{escape(report.place)}[/], seen by {escape(report.watchers)}")
    for name, told in report.nodes.items():
        console.print(f"  {escape(name)}: {escape(told)}", style="dim")
    if report.worst_lag_s or report.latencies_s:
        table = Table("what", "median", "worst", box=None, pad_edge=False)
        for what, (middle, longest) in report.latencies_s.items():
            table.add_row(what, f"{middle * 1000:.1f} ms", f"{longest * 1000:.1f} ms")
        for what, lag in report.worst_lag_s.items():
            seen = "not seen" if lag is None else "at once" if lag == 0.0 else f"{lag:.2f} s late"
            table.add_row(f"{what} seen by other nodes", "", seen)
        console.print(table)
        console.print(f"pairs of nodes compared: {report.pairs:,}")
    for finding in report.findings:
        colour = "red" if finding.severity is Severity.ERROR else "yellow"
        console.print(f"[{colour}]{finding.severity}[/] {escape(finding.what)} [dim]({finding.code})[/]")
        console.print(f"      {escape(finding.remedy)}")
    colour, word = ("green", "usable") if report.usable else ("red", "not usable as it is")
    console.print(f"mode: [bold]{report.mode}[/]; [bold {colour}]{word}[/]")
