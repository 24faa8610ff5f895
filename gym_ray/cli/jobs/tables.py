"""How a job looks, to people and to programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gym_ray.cli.jobs.standing import Standing
from gym_ray.submission.job_files import JobFiles

__all__ = ["print_standings", "standings_json"]

_COLOURS: Mapping[str, str] = {
    "complete": "green",
    "incomplete": "yellow",
    "failed": "bold red",
    "stopped": "yellow",
}


def print_standings(console: Console, files: JobFiles, found: Sequence[Standing]) -> None:
    """Print one line a benchmark, then what there is to say about any, and where its files are."""
    table = Table("benchmark", "state", "Ray", "submission id", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.columns[0].overflow = "fold"
    for one in found:
        colour = _COLOURS.get(one.counted, "cyan")
        state = one.state if one.state == one.counted else f"{one.state}?"
        table.add_row(
            escape(one.job.name), f"[{colour}]{state}[/]", one.heard.status or "-", escape(one.job.submission_id or "-")
        )
    console.print(table)
    for one in found:
        if one.note:
            console.print(f"[yellow]{escape(one.job.name)}[/] {escape(one.note)}", soft_wrap=True)
    for trouble in dict.fromkeys(one.heard.trouble for one in found if one.heard.trouble):
        console.print(f"[yellow]Ray was not asked[/] {escape(trouble)}", soft_wrap=True)
    console.print(f"[dim]job[/] {escape(str(files.directory))}", soft_wrap=True)


def standings_json(files: JobFiles, found: Sequence[Standing]) -> dict[str, Any]:
    """Return the same as a JSON document, without anything secret."""
    return {
        "job_id": files.record.id,
        "job_dir": str(files.directory),
        "created_at": files.record.created_at,
        "benchmarks": [_standing_json(files.directory, one) for one in found],
    }


def _standing_json(directory: Path, one: Standing) -> dict[str, Any]:
    status = one.status
    return {
        "name": one.job.name,
        "directory": str(directory / one.job.name),
        "state": one.state,
        "counted": one.counted,
        "over": one.over,
        "message": one.note,
        "submission_id": one.job.submission_id,
        "address": one.job.address,
        "submitted": one.job.state,
        "ray": one.heard.status or None,
        "ray_trouble": one.heard.trouble or None,
        "exit_code": status.exit_code,
        "started_at": status.started_at,
        "ended_at": status.ended_at,
        "heartbeat_at": status.heartbeat_at,
        "host": status.host or None,
    }
