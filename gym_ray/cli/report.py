"""How a run looks while it runs and when it is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from gym_ray import exact_json
from gym_ray.cli.runtime import Interrupts
from gym_ray.rollouts.collection import Progress as RunProgress
from gym_ray.rollouts.metrics import Aggregation, MetricsRow, RunMetrics

__all__ = [
    "RunBar",
    "Waiting",
    "first_failures",
    "print_figures",
    "print_report",
    "print_warnings",
    "print_written",
    "report_console",
]

_UNFOLDED_WIDTH = 160
_LOOKED_AT = 1000
_SHOWN = 300
_LONG_UNJOINED_S = 5.0
"""A record that is not stored by then is shown: the run waits for its joiners, not for its agents."""


def report_console() -> Console:
    """Return where reports go: standard output, wide enough for a table where it is no terminal."""
    console = Console(highlight=False)
    if console.is_terminal:
        return console
    # A file or a pipe has no width of its own; nothing is folded for it.
    return Console(highlight=False, width=max(console.width, _UNFOLDED_WIDTH))


def print_written(console: Console, files: Iterable[Path]) -> None:
    """Name the files that a command wrote, one a line."""
    for path in files:
        console.print(f"[dim]wrote[/] {escape(str(path))}", soft_wrap=True)


class Waiting:
    """Shows what a command waits for: on a terminal as a changing line, elsewhere each new reason once.

    Args:
        console: Where to.
        what: What is under way.
        interrupts: Looked at each moment, so that Ctrl-C ends the wait.
    """

    def __init__(self, console: Console, what: str, interrupts: Interrupts) -> None:
        self._console, self._what, self._interrupts = console, what, interrupts
        self._status = console.status(escape(what))
        self._reason = ""

    def __enter__(self) -> Waiting:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def show(self, reason: str) -> None:
        """Show a reason, "" when there is no news.

        Raises:
            KeyboardInterrupt: The user gave up.
        """
        self._interrupts.check()
        if not reason or reason == self._reason:
            return
        self._reason = reason
        text = f"{escape(self._what)}: {escape(reason)}"
        self._status.update(text)
        if not self._console.is_terminal:
            self._console.print(text, soft_wrap=True)


class RunBar:
    """A progress bar on the terminal; where there is none, nothing is drawn."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("[bold]rollouts"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> RunBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, state: RunProgress) -> None:
        """Draw where the run stands."""
        text = f"in hand {state.running + state.joining}  failed {state.failed}  retried {state.retries}"
        if (state.oldest_unjoined_s or 0.0) >= _LONG_UNJOINED_S:
            text += f"  storing {state.joining}, the oldest for {state.oldest_unjoined_s:.0f} s"
        finished = state.done + state.failed + state.unstored
        if self._task is None:
            self._task = self._progress.add_task("", total=state.rows, state=text)
        self._progress.update(self._task, completed=finished, total=state.rows, state=text)


def first_failures(path: Path) -> dict[str, str]:
    """Return the first message of each failure class among the first records of a failures file."""
    found: dict[str, str] = {}
    if not path.exists():
        return found
    with path.open("rb") as file:
        for line in islice(file, _LOOKED_AT):
            record = exact_json.loads_object(line) or {}
            name, message = record.get("_ng_failure_class"), record.get("_ng_failure_message")
            if isinstance(name, str) and isinstance(message, str) and name not in found:
                found[name] = message if len(message) <= _SHOWN else message[:_SHOWN] + "…"
    return found


def print_report(
    console: Console,
    metrics: RunMetrics,
    files: Sequence[tuple[str, object]],
    progress: RunProgress,
    first_messages: Mapping[str, str],
    aggregation: Aggregation | None = None,
) -> None:
    """Print the table of the run, its failures and masks with their reasons, its gaps, and its files.

    Args:
        console: Where to.
        metrics: What this collector counted.
        files: Where what was written is, each place with its label.
        progress: Where the run stands.
        first_messages: First message of each failure class.
        aggregation: Figures over all records, also those of earlier collectors, with intervals; where it is there, it
            takes the place of ``metrics``.
    """
    if aggregation is None:
        print_figures(console, metrics.rows(), metrics.to_dict()["overall"], first_messages)
    else:
        print_figures(console, aggregation.rows(), aggregation.metrics["overall"], first_messages)
        print_warnings(console, aggregation)
    unfinished = progress.rows - progress.done - progress.failed - progress.unstored
    if unfinished:
        console.print(f"[yellow]unfinished[/] {unfinished} of {progress.rows} rows have no record; --resume goes on")
    for label, path in files:
        console.print(f"[dim]{label:<10}[/] {escape(str(path))}", soft_wrap=True)


def print_figures(
    console: Console, rows: Sequence[MetricsRow], overall: Mapping[str, Any], first_messages: Mapping[str, str]
) -> None:
    """Print the table, and what is not in it: what was not measured, failures, gaps and masks with their reasons."""
    names = ("agent", "done", "fail", "reward", "pass@1", "calls", "in", "out", "p50 s", "p90 s", "gaps")
    table = Table(*names, box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold cyan")
    table.columns[0].overflow = "fold"  # a long name may take two lines; a number is never cut
    for column, name in zip(table.columns[1:], names[1:], strict=True):
        column.justify, column.no_wrap, column.min_width = "right", True, len(name)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    spread = "; ±: 95 % interval over tasks" if any(row.half_width is not None for row in rows) else ""
    console.print(
        f"[dim]in, out: tokens of all calls; p50, p90: whole rollouts; gaps: rollouts with incomplete captures{spread}"
    )
    for row in rows:
        if row.masked or row.unmeasured:
            missing = f"{row.masked} masked, {row.unmeasured} without a number; they are in no mean"
            console.print(f"[yellow]reward[/] {escape(row.agent)}: {missing}", soft_wrap=True)
    for name, count in overall["failures"].items():
        first = f"; first: {escape(first_messages[name])}" if name in first_messages else ""
        console.print(f"[yellow]failure[/] {escape(name)}: {count}{first}", soft_wrap=True)
    for name, count in overall["gaps"].items():
        console.print(f"[yellow]gap[/] {escape(name)}: {count}", soft_wrap=True)
    _print_training(console, overall["token_capture"])


def print_warnings(console: Console, aggregation: Aggregation) -> None:
    """Print what aggregation found not as it should be."""
    for warning in aggregation.warnings:
        console.print(f"[yellow]warning[/] {escape(warning)}", soft_wrap=True)
    more = aggregation.metrics["warnings"]["count"] - len(aggregation.warnings)
    if more:
        console.print(f"[yellow]warning[/] and {more} more like these")


def _print_training(console: Console, tokens: Mapping[str, Any]) -> None:
    if not tokens["finalised"]:
        return
    looked_at, masked = tokens["finalised"], tokens["masked"]
    rest = f"; {masked} masked" if masked else ""
    console.print(f"[bold]training[/] {looked_at - masked} of {looked_at} rollouts have exact tokens{rest}")
    for reason, count in tokens["mask_reasons"].items():
        console.print(f"[yellow]masked[/] {escape(reason)}: {count}", soft_wrap=True)


def _cells(row: MetricsRow) -> list[str]:
    return [
        escape(row.agent),
        _count(row.done),
        _count(row.failed),
        _reward(row),
        _number(row.pass_at_1, "{:.1f}%"),
        _count(row.calls),
        _count(row.tokens_in),
        _count(row.tokens_out),
        _number(_seconds(row.latency_p50_ms), "{:.1f}"),
        _number(_seconds(row.latency_p90_ms), "{:.1f}"),
        _count(row.gaps),
    ]


def _reward(row: MetricsRow) -> str:
    mean = _number(row.reward, "{:.3f}")
    return mean if row.half_width is None else f"{mean}±{row.half_width:.3f}"


def _count(value: float | None) -> str:
    """Return at most five characters: exact below 100,000, then thousands, millions, billions."""
    if value is None:
        return "?"
    if value < 100_000:
        return f"{value:.0f}"
    if value >= 10**15:  # an engine may claim any number of tokens; the files have it as it came
        return "huge"
    thousands = (len(str(int(value))) - 1) // 3
    value /= 1000**thousands
    unit = "kMBT"[thousands - 1]
    return f"{value:.1f}{unit}" if value < 100 else f"{value:.0f}{unit}"


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _number(value: float | None, form: str) -> str:
    return "?" if value is None else form.format(value)
