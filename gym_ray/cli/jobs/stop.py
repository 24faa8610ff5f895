"""``gym-ray eval stop``: end benchmarks of a job in order, and with force what does not end in time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from gym_ray.cli.jobs.cluster import Address
from gym_ray.cli.jobs.standing import Clusters, Standing, settle, standings
from gym_ray.cli.jobs.status import JobDir
from gym_ray.cli.jobs.tables import print_standings
from gym_ray.cli.report import report_console
from gym_ray.errors import ClusterError
from gym_ray.submission.job_files import BenchmarkJob, JobFiles, read_job

__all__ = ["Benchmark", "chosen", "stop_job"]

Benchmark = Annotated[str | None, typer.Argument(metavar="[BENCHMARK]", help="One benchmark; all without it.")]

_POLL_S = 0.5
_FORCE_S = 30.0
"""Ray ends what is left after 3 s; what it says is a little later than what it does."""


def chosen(files: JobFiles, benchmark: str | None) -> list[str]:
    """Return the benchmarks that a command is about.

    Raises:
        StorageError: The job has none of this name; the message names those that it has.
    """
    if benchmark is None:
        return [job.name for job in files.record.benchmarks]
    files.benchmark(benchmark)
    return [benchmark]


def stop_job(
    job_dir: JobDir,
    benchmark: Benchmark = None,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for what runs to be stored.")] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to end in order before force.")] = 60.0,
    address: Address = None,
) -> None:
    """Stop benchmarks of a job: what has ended is stored, then they end; Ray ends those that do not in time.

    A second time does no harm. Exit code: 0 when all are over, 1 when one may still run.
    """
    files = read_job(job_dir)
    names = chosen(files, benchmark)
    clusters = Clusters(address)
    found = standings(files, names, clusters)
    for one in found:
        if not one.status.ended:
            files.request_stop(one.job.name, "gym-ray eval stop")
    if not now:
        found = _wait(files, found, clusters, timeout_s)
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    found = _force(files, found, clusters, errors)
    found = [settle(files, one) for one in found]
    print_standings(report_console(), files, found)
    raise typer.Exit(int(any(_may_run(one) for one in found)))


def _wait(files: JobFiles, found: Sequence[Standing], clusters: Clusters, timeout_s: float) -> list[Standing]:
    """Return how they stand when all are over, or when the time is up."""
    until = time.monotonic() + timeout_s
    latest = list(found)
    while not all(one.over for one in latest) and time.monotonic() < until:
        time.sleep(min(_POLL_S, timeout_s))
        latest = standings(files, [one.job.name for one in latest], clusters, ask_all=False)
    return latest


def _force(files: JobFiles, found: Sequence[Standing], clusters: Clusters, errors: Console) -> list[Standing]:
    """Have Ray end what may still run, and return how all stand when it says that it did."""
    asked: list[BenchmarkJob] = []
    for one in found:
        if not _may_run(one):
            continue
        try:
            clusters.of(one.job).stop(one.job.submission_id or "")
            asked.append(one.job)
        except ClusterError as error:
            reason = escape(str(error))
            errors.print(f"[yellow]warning[/] {escape(one.job.name)}: Ray cannot be asked to end it: {reason}")
    until = time.monotonic() + _FORCE_S
    while any(clusters.hear(job).alive for job in asked) and time.monotonic() < until:
        time.sleep(_POLL_S)
    return standings(files, [one.job.name for one in found], clusters)


def _may_run(one: Standing) -> bool:
    """Return whether a driver may be alive: it did not say that it ended, and neither does Ray."""
    if one.status.ended or one.job.state == "refused" or one.job.submission_id is None:
        return False
    return one.heard.alive or not one.heard.asked
