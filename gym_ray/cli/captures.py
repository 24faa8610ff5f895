"""``gym-ray captures``: look at what was captured."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gym_ray import exact_json
from gym_ray.errors import CaptureError, RolloutIdError
from gym_ray.model_call_capture import CaptureStore, ModelCallRecord
from gym_ray.model_call_capture.attachment import build_attachment
from gym_ray.model_call_capture.quirk_flags import quirk_flags
from gym_ray.model_call_capture.records import aggregate_model_call_records, build_records
from gym_ray.model_call_capture.store import CAPTURE_SUFFIX, INCOMPLETE_SUFFIX

__all__ = ["captures_app"]

captures_app = typer.Typer(help="Look at captured model calls.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="Capture directory.", metavar="DIR")]


def _open(directory: Path) -> CaptureStore:
    if not directory.is_dir():
        raise CaptureError(f"{directory}: not a directory; name the model_call_capture_dir of a run")
    return CaptureStore(directory)


@captures_app.command("ls")
def ls(directory: Directory) -> None:
    """List the rollouts of a capture directory with their calls, tokens, state, and what is odd about their calls."""
    store = _open(directory)
    files = {path.name.removesuffix(CAPTURE_SUFFIX) for path in directory.glob(f"*{CAPTURE_SUFFIX}")}
    marked = {path.name.removesuffix(INCOMPLETE_SUFFIX) for path in directory.glob(f"*{INCOMPLETE_SUFFIX}")}
    table = Table("rollout", "calls", "failed", "tokens in", "tokens out", "latency", "state", "flags", box=None)
    for name in ("calls", "failed", "tokens in", "tokens out", "latency"):
        next(column for column in table.columns if column.header == name).justify = "right"
    for rollout_id in sorted(files | marked, key=_natural):
        try:
            exchanges, unreadable = store.read_available(rollout_id)
        except (CaptureError, RolloutIdError) as error:
            table.add_row(escape(rollout_id), "?", "?", "?", "?", "?", escape(str(error)))
            continue
        calls, unbuildable = build_records(exchanges)
        totals = aggregate_model_call_records(calls)
        failed = sum(1 for call in calls if call.error_category is not None)
        state = _state(rollout_id in marked, unreadable + unbuildable, len(calls))
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
    Console().print(table if table.row_count else f"{escape(str(directory))}: no captures")


@captures_app.command("show")
def show(
    directory: Directory,
    rollout_id: Annotated[str, typer.Argument(help="Rollout id, such as 0-0 or 3-1-a1.")],
    raw: Annotated[bool, typer.Option("--raw", help="Print the stored lines as they are.")] = False,
) -> None:
    """Show the model calls of one rollout: request, answer, tokens, latency, errors, and what is missing."""
    store = _open(directory)
    path = store.path_for(rollout_id)
    if not path.exists() and not store.is_incomplete(rollout_id):
        raise CaptureError(f"{path}: no capture of rollout {rollout_id}; `gym-ray captures ls {directory}` lists them")
    snapshot = store.snapshot(rollout_id)
    if raw:
        sys.stdout.buffer.write(snapshot.data or b"")
        return
    console = Console(highlight=False)
    exchanges, _ = store.read_available(rollout_id)
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
