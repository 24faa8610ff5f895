"""``gym-ray status``: where runs stand, from their own files; it never asks a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gym_ray import exact_json
from gym_ray.cli.live_runs import FilesOfRun, begun_runs, read_word
from gym_ray.cli.report import report_console
from gym_ray.rollouts.control.client import RunStatus

__all__ = ["SILENT", "status"]

SILENT = 2
"""Exit code when a run that should speak has not, or when nobody knows whether one that is incomplete goes on."""


def status(
    place: Annotated[Path, typer.Argument(help="Records of a run, or the directory of a job.", metavar="PATH")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a run.")] = False,
) -> None:
    """Say what runs where, what waits, what failed; exit with 2 when a run that is not over is silent."""
    found = [(name, read_word(paths)) for name, paths in begun_runs(place)]
    console = report_console()
    for name, word in found:
        if as_json:
            console.out(exact_json.dumps({"name": name, **_value(word)}).decode(), highlight=False)
        elif isinstance(word, FilesOfRun):
            _show_files(console, name, word)
        else:
            _show(console, name, word)
    if any(not word.complete if isinstance(word, FilesOfRun) else word.silent for _, word in found):
        raise typer.Exit(SILENT)


def _value(word: RunStatus | FilesOfRun) -> dict[str, Any]:
    if isinstance(word, FilesOfRun):
        return word.to_dict()
    return {"age_s": word.age_s, "silent": word.silent, **word.value}


def _show_files(console: Console, name: str, word: FilesOfRun) -> None:
    begun = f" since {escape(word.begun_at)}" if word.begun_at else ""
    console.print(f"[bold]{escape(name)}[/]: [yellow]it has not said where it stands[/]{begun}; its files say:")
    counts = f"{word.rows} rows, {word.records} records, {word.failed_attempts} failed attempts"
    console.print(f"  {counts}" + ("" if word.complete else "; whether it goes on is not known"), soft_wrap=True)


def _show(console: Console, name: str, word: RunStatus) -> None:
    value, progress = word.value, word.value["progress"]
    console.print(f"[bold]{escape(name)}[/]: {_state(word)}", soft_wrap=True)
    counts = ("rows", "done", "failed", "unstored", "cancelled", "unrecorded", "retries")
    console.print("  " + ", ".join(f"{progress[key]} {key}" for key in counts), soft_wrap=True)
    if word.over:
        left = progress["rows"] - progress["done"] - progress["failed"] - progress["unstored"]
        console.print(f"  it left {left} rows unfinished" + ("; --resume goes on" if left else ""))
    else:
        oldest = "" if value["oldest_s"] is None else f", the oldest for {value['oldest_s']:.0f} s"
        console.print(
            f"  queue {value['queue']}, in flight {value['in_flight']}{oldest}, storing {progress['joining']}"
        )
        console.print(f"  {value['ended_per_s']:.2f} rows/s")
    for failure, count in value["failures"].items():
        console.print(f"  [yellow]failure[/] {escape(failure)}: {count}", soft_wrap=True)
    if value["placements"] and not word.over:
        console.print(_placements(value))


def _state(word: RunStatus) -> str:
    progress = word.value["progress"]
    if word.over:
        return "over, complete" if progress["complete"] else "over, incomplete"
    held = "draining" if progress["stopped"] else "paused" if progress["paused"] else "running"
    silent = f"; [red]no word since {word.age_s:.0f} s[/], its collector may be gone" if word.silent else ""
    return held + silent


def _placements(value: dict[str, Any]) -> Table:
    table = Table("rollout", "attempt", "worker", "node", "s", box=None)
    for place in value["placements"]:
        seconds = max(0.0, value["at"] - place["begun_at"])
        texts = (place["rollout_id"], str(place["attempt"]), place["seat"], place["node"][:12], f"{seconds:.0f}")
        table.add_row(*map(escape, texts))
    return table
