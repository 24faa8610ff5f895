"""How ``gym-ray staging`` shows what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from gym_ray import exact_json
from gym_ray.token_id_capture.staging.parquet import CompactionReport, ListedCall, StoreSurvey

__all__ = ["print_call", "print_calls", "print_compaction", "print_json", "print_survey", "survey_document"]

_SHOWN = 2000
_ENDLESS = 10_000
"""Columns, more than any line has."""
_MAIN = ("rollout_id", "model_call_id", "parent_call_id", "mode", "weight_version", "prev_len", "delta_len", "cum_len")
_HASHES = ("digest", "extras_digest", "chain_hash", "cumulative_hash")


def print_json(value: Any) -> None:
    """Print one JSON document."""
    typer.echo(exact_json.dumps(value))


def survey_document(found: StoreSurvey) -> dict[str, Any]:
    """Return a survey as JSON."""
    segments = [
        {"partition": partition, "kind": kind, **asdict(one), "writers": len(one.writers)}
        for (partition, kind), one in found.kinds.items()
    ]
    return {
        "place": found.place,
        "store_id": found.store_id,
        "segments": segments,
        "retirements": found.retirements,
        "frozen": found.frozen,
        "unfinished_compactions": found.unfinished_compactions,
    }


def print_survey(found: StoreSurvey) -> None:
    """Print what a store holds: one line a partition and kind, then what else there is."""
    console = _unfolded()
    console.print(f"[bold]staging store[/] {found.store_id}  [dim]{escape(found.place)}", soft_wrap=True)
    table = Table("partition", "kind", "segments", "size", "writers", "moved", "to be freed", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for (partition, kind), one in found.kinds.items():
        moved = (str(one.moved_segments), decimal(one.moved_bytes)) if one.moved_segments else ("", "")
        table.add_row(partition, kind, str(one.segments), decimal(one.bytes), str(len(one.writers)), *moved)
    console.print(table if table.row_count else "no segments")
    console.print(f"[dim]frozen rollouts[/] {found.frozen}  [dim]retirements[/] {found.retirements}")
    if found.unfinished_compactions:
        console.print(f"[yellow]unfinished compactions[/] {found.unfinished_compactions}; run compact to finish them")


def print_calls(calls: Sequence[ListedCall]) -> None:
    """Print a line for each key that was handed out; a call that several sinks staged has several."""
    table = Table("rollout", "call", "attachments", "state", "key", box=None)
    for call in calls:
        attachments = str(call.attachments) if call.attachments else ""
        state = "retired" if call.retired else "staged"
        for key in (call.key, *call.other_keys):
            table.add_row(escape(call.rollout_id), escape(call.model_call_id), attachments, state, key)
    _unfolded().print(table if calls else "no staged calls")


def _unfolded() -> Console:
    """Return a console that never folds a line: a key that was cut in two is found by nobody, and none by grep."""
    return Console(highlight=False, width=_ENDLESS)


def print_call(call: Mapping[str, Any]) -> None:
    """Print one call: its links, how many tokens, its hashes, extras and attachments."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(call['key'])}", soft_wrap=True)
    for name in (*_MAIN, "generated", "mean_log_prob", *_HASHES):
        value = call[name]
        if value is not None:
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            console.print(f"[dim]{name:<16}[/] {escape(shown)}", soft_wrap=True)
    if call["extras"] is not None:
        text = exact_json.dumps(call["extras"]).decode()
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters; --json shows all)"
        console.print(f"[cyan]extras[/] {escape(shown)}", soft_wrap=True)
    for one in call["attachments"]:
        shape = "x".join(map(str, one["shape"])) or "scalar"
        console.print(
            f"[cyan]attachment[/] {escape(one['name'])} [dim]item[/] {one['item']}  {escape(one['dtype'])} {shape}  "
            f"{decimal(one['nbytes'])}  [dim]sha256[/] {one['sha256'][:16]}…",
            soft_wrap=True,
        )


def print_compaction(report: CompactionReport) -> None:
    """Print what a run of compaction did, and what it left."""
    console = Console(highlight=False)
    console.print(
        f"[bold]{len(report.moved)}[/] segments became [bold]{len(report.written)}[/]; "
        f"{report.dropped_calls} retired calls were dropped; {len(report.deleted)} old segments were removed"
    )
    if report.dropped_rows:
        console.print(f"{report.dropped_rows} token records and events of dropped or cleared rollouts were left out")
    if report.forgotten:
        console.print(f"{len(report.forgotten)} dropped rollouts were forgotten")
    if report.waiting:
        console.print(f"[dim]{len(report.waiting)} old segments wait for their delay; a later run removes them")
    for problem in report.problems:
        console.print(f"[yellow]left as it is[/] {escape(problem)}", soft_wrap=True)
