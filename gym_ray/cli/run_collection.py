"""Runs one collection for a terminal: starts what it needs, follows it, reports how it ended."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape

from gym_ray.cli.agent_metrics import ask_agents, metrics_urls
from gym_ray.cli.eval_health import print_health
from gym_ray.cli.found_servers import Head
from gym_ray.cli.head import HeadWatch
from gym_ray.cli.report import RunBar, Waiting, first_failures, print_report, report_console
from gym_ray.cli.run_plan import end_plan, shared_places
from gym_ray.cli.runtime import INTERRUPTED, Interrupts, new_run_token, ray_session, user_cache_dir
from gym_ray.cli.token_remarks import collection_remarks, control_token, print_warnings
from gym_ray.errors import GymRayError
from gym_ray.rollouts.collection import Progress as RunProgress
from gym_ray.rollouts.ending import RunEnding, end_run, incomplete, nothing_produced
from gym_ray.rollouts.metrics import RunMetrics
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan, SessionStart
from gym_ray.settings import RunSettings

__all__ = ["collect"]

_LANES = 64
INCOMPLETE = 2
"""Exit code of a run that had to be complete and is not."""


def collect(settings: RunSettings, plan: RunPlan, head: Head | None, *, verbose: bool) -> int:
    """Start what is needed, collect, report; return the exit code.

    Raises:
        GymRayError: Something could not be started, or ended the run; what had ended by then is stored.
    """
    console = Console(stderr=True, highlight=False)
    secret = control_token(settings) if head is None else None
    print_warnings(console, collection_remarks(settings))
    console.print("[dim]starting Ray")
    session = f"gym-ray/{secrets.token_hex(4)}"
    with ray_session(session, verbose=verbose, log_format=settings.log_format) as interrupts:
        from gym_ray.actors.collecting import collecting
        from gym_ray.actors.collector import CollectionPlan
        from gym_ray.actors.doctor import check_shared

        check_shared(shared_places(settings, plan), on_wait=interrupts.check)
        with _serving(settings, head, secret, console, interrupts) as served:
            head = served.head
            with collecting(
                settings,
                CollectionPlan(plan, _LANES),
                head.directory,
                run_token=head.run_token,
                on_wait=interrupts.check,
                servers=served.servers,
            ) as running:
                _print_start(console, running.start)
                end = _follow(running.collector, console, interrupts, served.watch)
                progress, metrics = _results(running.collector, end)
            # While the servers still run: what scored the rollouts may have metrics of its own.
            post = ask_agents(metrics_urls(settings, head.directory), run_token=head.run_token)
            ended = end_run(plan.paths, end_plan(settings), post=post)
    report = _Report(settings, plan.paths, metrics, progress, ended)
    try:
        return report.show(end.stopped or int(end.failure is not None))
    finally:
        if end.failure is not None:  # behind the report, and before anything that went wrong with it
            raise end.failure


@dataclass(frozen=True, slots=True)
class _Served:
    """The servers of a run: its own, or those of a head that is watched."""

    head: Head
    servers: Any = None
    watch: HeadWatch | None = None


@contextmanager
def _serving(
    settings: RunSettings, head: Head | None, secret: str | None, console: Console, interrupts: Interrupts
) -> Iterator[_Served]:
    """Hold servers of the run's own for the block, or watch those that ``head`` says are running."""
    if head is not None:
        yield _Served(head, watch=HeadWatch(settings.head_server.host, settings.head_server.port))
        return
    from gym_ray.actors.servers import start_servers

    token = new_run_token()
    with Waiting(console, "starting servers", interrupts) as waiting:
        servers = start_servers(
            settings, run_token=token, control_token=secret, cache_dir=user_cache_dir(), on_wait=waiting.show
        )
    try:
        yield _Served(Head(servers.directory, token), servers)
    finally:
        servers.stop()


def _print_start(console: Console, start: SessionStart) -> None:
    print_warnings(console, list(start.warnings))
    if start.set_aside is not None:
        console.print(f"[dim]earlier results are in[/] {escape(str(start.set_aside))}", soft_wrap=True)
    if start.resumed:
        left = start.rows - start.done - start.given_up
        given_up = f", {start.given_up} given up" if start.given_up else ""
        console.print("[dim]its rows are those of the first run, whatever input and agent are now[/]")
        console.print(f"[dim]resuming:[/] {start.done} of {start.rows} rows are done{given_up}, {left} are left")


@dataclass(frozen=True, slots=True)
class _End:
    """How a run ended: 0 or the exit code of what stopped it early, and what ended it, None for nothing."""

    stopped: int
    failure: GymRayError | None


def _follow(collector: Any, console: Console, interrupts: Interrupts, watch: HeadWatch | None) -> _End:
    """Draw progress until the run is over; an error of the run is returned, so that it does not hide what was done."""
    from gym_ray.actors.calls import MOMENT_S, get, wait

    stopped = 0
    interrupts.tolerated = 1  # the first one lets what has ended be stored
    ended = collector.run.remote()
    with RunBar(console) as bar:
        while not wait(ended, MOMENT_S):
            interrupts.check()
            if interrupts.presses and not stopped:
                stopped = INTERRUPTED
                console.print("stopping: what has ended is stored; Ctrl-C again leaves at once")
                collector.stop.remote()
            if watch is not None and not stopped and watch.gone():
                stopped = 1
                console.print(f"[bold red]stopping:[/] the servers of {watch.place} are gone; what has ended is stored")
                collector.stop.remote()
            bar.show(get(collector.progress.remote(), None))
    try:
        get(ended, None)
    except GymRayError as error:
        return _End(stopped, error)
    return _End(stopped, None)


def _results(collector: Any, end: _End) -> tuple[RunProgress, RunMetrics]:
    """Return what the collector counted.

    Raises:
        GymRayError: The collector's process is gone, and nobody else counted; what ended the run, if that is known.
    """
    from gym_ray.actors.calls import get

    try:
        progress, metrics = get([collector.progress.remote(), collector.metrics.remote()], None)
    except GymRayError as error:
        raise end.failure or error from None
    return progress, metrics


@dataclass(frozen=True, slots=True)
class _Report:
    """What is said when a run is over."""

    settings: RunSettings
    paths: RunPaths
    metrics: RunMetrics
    progress: RunProgress
    ended: RunEnding

    def show(self, stopped: int) -> int:
        """Print the report and return the exit code; ``stopped`` is what ended the run early, 0 for nothing."""
        console = report_console()
        print_report(
            console,
            self.metrics,
            self._files(),
            self.progress,
            first_failures(self.paths.failures),
            self.ended.aggregation,
        )
        if self.ended.health is not None:
            print_health(console, self.ended.health, blind_spots=False)
        errors = Console(stderr=True, highlight=False, soft_wrap=True)
        for problem in self.ended.problems:
            errors.print(f"[yellow]warning[/] {escape(problem)}")
        return stopped or self._verdict(errors)

    def _files(self) -> list[tuple[str, object]]:
        progress, paths, aggregated = self.progress, self.paths, self.ended.aggregation is not None
        files: Sequence[tuple[str, object]] = (
            ("records", paths.output),
            ("failures", paths.failures if progress.failed or progress.retries else None),
            ("metrics", paths.metrics if aggregated else None),
            ("by agent", paths.aggregate_metrics if aggregated else None),
            ("health", paths.public_quality_summary if self.ended.health is not None else None),
            ("captures", self.settings.capture_location),
            ("tokens", self.settings.token_dir),
        )
        return [(label, path) for label, path in files if path is not None]

    def _verdict(self, errors: Console) -> int:
        progress = self.progress
        if nothing_produced(progress, self.ended):
            place = escape(str(self.paths.failures))
            errors.print(f"[bold red]error:[/] none of the {progress.rows} rollouts produced a result; see {place}")
            return 1
        if incomplete(end_plan(self.settings), progress):
            errors.print(f"[bold red]EVAL FAILED:[/] {progress.done}/{progress.rows} samples completed")
            return INCOMPLETE
        return 0
