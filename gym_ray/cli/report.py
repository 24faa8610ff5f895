"""How a run looks while it runs and when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from gym_ray.rollouts.collection import Progress as RunProgress
from gym_ray.rollouts.metrics import MetricsRow, RunMetrics

__all__ = ["RunBar", "print_report"]


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
        text = f"running {state.running}  joining {state.joining}  failed {state.failed}  retried {state.retries}"
        finished = state.done + state.failed + state.unstored
        if self._task is None:
            self._task = self._progress.add_task("", total=state.rows, state=text)
        self._progress.update(self._task, completed=finished, total=state.rows, state=text)


def print_report(
    console: Console, metrics: RunMetrics, files: Sequence[tuple[str, Path]], progress: RunProgress
) -> None:
    """Print the table of the run, its failures and gaps by name, and where its files are."""
    names = ("agent", "done", "failed", "reward", "pass@1", "calls", "tokens in", "out", "p50 s", "p90 s", "gaps")
    table = Table(*names, box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for row in metrics.rows():
        table.add_row(*_cells(row))
    console.print(table)
    overall = metrics.to_dict()["overall"]
    for title, counts in (("failure", overall["failures"]), ("gap", overall["gaps"])):
        for name, count in counts.items():
            console.print(f"[yellow]{title}[/] {escape(name)}: {count}")
    unfinished = progress.rows - progress.done - progress.failed - progress.unstored
    if unfinished:
        console.print(f"[yellow]unfinished[/] {unfinished} of {progress.rows} rows have no record")
    for label, path in files:
        console.print(f"[dim]{label:<10}[/] {escape(str(path))}", soft_wrap=True)


def _cells(row: MetricsRow) -> list[str]:
    return [
        escape(row.agent),
        f"{row.done:,}",
        f"{row.failed:,}",
        _number(row.reward, "{:.3f}"),
        _number(row.pass_at_1, "{:.1f}%"),
        _number(row.calls, "{:,.0f}"),
        _number(row.tokens_in, "{:,.0f}"),
        _number(row.tokens_out, "{:,.0f}"),
        _number(_seconds(row.latency_p50_ms), "{:,.1f}"),
        _number(_seconds(row.latency_p90_ms), "{:,.1f}"),
        f"{row.gaps:,}",
    ]


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _number(value: float | None, form: str) -> str:
    return "?" if value is None else form.format(value)
