"""``gym-ray eval logs``: what the programs of a job printed, from the job's own files, since Ray forgets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from gym_ray.cli.jobs.cluster import Address
from gym_ray.cli.jobs.log_tail import LogTail
from gym_ray.cli.jobs.standing import Clusters, Standing, watched
from gym_ray.cli.jobs.status import JobDir
from gym_ray.cli.jobs.stop import Benchmark, chosen
from gym_ray.submission.job_files import JobFiles, read_job
from gym_ray.submission.job_states import exit_code_of

__all__ = ["job_logs"]


def job_logs(
    job_dir: JobDir,
    benchmark: Benchmark = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the benchmarks are over.")] = False,
    address: Address = None,
) -> None:
    """Print what the programs of a job printed; of several benchmarks each line begins with its name.

    Exit code with --follow: that of `eval status` at the end. Ctrl-C ends only this command, not the job.
    """
    files = read_job(job_dir)
    names = chosen(files, benchmark)
    tails = {name: LogTail(files.driver_log(name)) for name in names}
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    if not follow:
        for name in names:
            if not files.driver_log(name).exists():
                errors.print(f"[dim]{escape(name)}: nothing was printed yet; its driver has not begun[/]")
        _print(tails, last=True)
        return
    found = _follow(files, tails, Clusters(address), errors)
    for one in found:
        note = f": {one.note}" if one.note else ""
        errors.print(f"[dim]{escape(one.job.name)}[/] {escape(one.state + note)}")
    raise typer.Exit(exit_code_of(one.counted for one in found))


def _follow(files: JobFiles, tails: Mapping[str, LogTail], clusters: Clusters, errors: Console) -> Sequence[Standing]:
    """Print what comes until all benchmarks are over, and return how they stand."""
    said = {""}
    found: list[Standing] = []
    for found in watched(files, tails, clusters):
        # Read after the look: what a driver printed, it printed before it said that it ended.
        _print(tails, last=all(one.over for one in found))
        for trouble in {one.heard.trouble for one in found} - said:
            said.add(trouble)
            errors.print(f"[yellow]Ray was not asked[/] {escape(trouble)}")
    return found


def _print(tails: Mapping[str, LogTail], *, last: bool) -> None:
    for name, tail in tails.items():
        prefix = f"[{name}] " if len(tails) > 1 else ""
        for line in tail.lines(last=last):
            sys.stdout.write(f"{prefix}{line}\n")
    sys.stdout.flush()
