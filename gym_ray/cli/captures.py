"""``gym-ray captures``: look at what was captured."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gym_ray import exact_json
from gym_ray.cli.capture_places import CapturePlace, StorageOptions, opened_captures
from gym_ray.errors import CaptureError, RolloutIdError
from gym_ray.model_call_capture import ModelCallRecord
from gym_ray.model_call_capture.attachment import build_attachment
from gym_ray.model_call_capture.captures import Captures
from gym_ray.model_call_capture.lines import parse_lines
from gym_ray.model_call_capture.quirk_flags import quirk_flags
from gym_ray.model_call_capture.records import aggregate_model_call_records, build_records

__all__ = ["captures_app"]

captures_app = typer.Typer(help="Look at captured model calls.", no_args_is_help=True)


@captures_app.command("ls")
def ls(place: CapturePlace, storage_options: StorageOptions = None) -> None:
    """List the rollouts of a place with their calls, tokens, state, and what is odd about their calls."""
    with opened_captures(place, storage_options) as captures:
        _list(captures, place)


def _list(captures: Captures, place: str) -> None:
    table = Table("rollout", "calls", "failed", "tokens in", "tokens out", "latency", "state", "flags", box=None)
    for name in ("calls", "failed", "tokens in", "tokens out", "latency"):
        next(column for column in table.columns if column.header == name).justify = "right"
    for rollout_id in sorted(captures.rollout_ids(), key=_natural):
        try:
            snapshot = captures.snapshot(rollout_id, None)
            problem = snapshot.error
        except RolloutIdError as error:
            problem = str(error)
        if problem is not None:
            table.add_row(escape(rollout_id), "?", "?", "?", "?", "?", escape(problem))
            continue
        exchanges, unreadable = parse_lines(snapshot.data or b"")
        calls, unbuildable = build_records(exchanges)
        totals = aggregate_model_call_records(calls)
        failed = sum(1 for call in calls if call.error_category is not None)
        state = _state(snapshot.incomplete, unreadable + unbuildable, len(calls))
        table.add_row(
            escape(rollout_id),
            str(len(calls)),
            str(failed) if failed else "",
            _known(totals["tokens_in"]),
            _known(totals["tokens_out"]),
            _milliseconds(totals["latency_total_ms"]),
            state,
            _counted(flag for _, exchange in exchanges for flag in quirk_flags(exchange)),
        )
    Console().print(table if table.row_count else f"{escape(place)}: no captures")


@captures_app.command("show")
def show(
    place: CapturePlace,
    rollout_id: Annotated[str, typer.Argument(help="Rollout id, such as 0-0 or 3-1-a1.")],
    raw: Annotated[bool, typer.Option("--raw", help="Print the stored lines as they are.")] = False,
    storage_options: StorageOptions = None,
) -> None:
    """Show the model calls of one rollout: request, answer, tokens, latency, errors, and what is missing."""
    with opened_captures(place, storage_options) as captures:
        snapshot = captures.snapshot(rollout_id, None)
        shown = captures.place
    if snapshot.error is None and snapshot.data is None and not snapshot.incomplete:
        raise CaptureError(f"{shown}: no capture of rollout {rollout_id}; `gym-ray captures ls {shown}` lists them")
    if raw:
        sys.stdout.buffer.write(snapshot.data or b"")
        return
    console = Console(highlight=False)
    if snapshot.error is not None:
        raise CaptureError(snapshot.error)
    exchanges, _ = parse_lines(snapshot.data or b"")
    flags = {index: quirk_flags(exchange) for index, exchange in exchanges}
    for call in build_records(exchanges)[0]:
        _print_call(console, call, flags[call.call_index])
    for gap in build_attachment(rollout_id, snapshot).get("gaps", []):
        console.print(f"[yellow]gap[/] {gap['code']} {escape(str(gap.get('detail', '')))}")


def _state(marked: bool, damaged: int, calls: int) -> str:
    if marked:
        return "incomplete"
    if damaged:
        return f"damaged lines: {damaged}"
    return "recorded" if calls else "no calls yet"


def _counted(flags: Iterable[str]) -> str:
    return ", ".join(f"{flag} ({count})" if count > 1 else flag for flag, count in sorted(Counter(flags).items()))


def _print_call(console: Console, call: ModelCallRecord, flags: Iterable[str]) -> None:
    verdict = f"[red]{call.error_category}[/]" if call.error_category else "[green]ok[/]"
    console.rule(f"[bold]call {call.call_index}[/] {call.model_call_id} {verdict}", align="left")
    facts = {
        "dialect": call.dialect,
        "model": call.model,
        "status": call.status_code,
        "finish": call.finish_reason or call.response_status,
        "tokens in/out": f"{_known(call.tokens_in)}/{_known(call.tokens_out)}",
        "latency": _milliseconds(call.latency_total_ms),
        "first token": _milliseconds(call.latency_ttft_ms),
        "flags": ", ".join(flags),
    }
    console.print("  ".join(f"[dim]{name}[/] {escape(str(value))}" for name, value in facts.items() if value))
    for label, payload, text in (
        ("request", call.request, call.request_raw),
        ("response", call.response, call.response_raw),
    ):
        body = exact_json.dumps(payload).decode() if payload is not None else text
        if body:
            console.print(f"[cyan]{label}[/] {escape(body)}", soft_wrap=True)


def _known(value: object) -> str:
    return "?" if value is None else f"{value:,}"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f} ms"


def _natural(rollout_id: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in rollout_id.split("-")]
