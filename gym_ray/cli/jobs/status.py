"""``gym-ray eval status``: how the benchmarks of a job stand, from its files and from the cluster where it answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gym_ray.cli.jobs.cluster import Address
from gym_ray.cli.jobs.standing import Clusters, heard_out
from gym_ray.cli.jobs.tables import print_standings, standings_json
from gym_ray.cli.report import report_console
from gym_ray.submission.job_files import read_job
from gym_ray.submission.job_states import exit_code_of

__all__ = ["JobDir", "job_status"]

JobDir = Annotated[Path, typer.Argument(metavar="JOB_DIR", help="The directory of the job, as `eval submit` names it.")]


def job_status(
    job_dir: JobDir,
    address: Address = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
) -> None:
    """Show how the benchmarks of a job stand.

    Where Ray knows more than the files show, as on storage that shows changes late, they get half a minute to come.

    Exit code: 0 when all are complete, 1 when one failed or nobody knows of a living driver of it, 130 when one was
    stopped, 2 when one is incomplete or not over.
    """
    files = read_job(job_dir)
    found = heard_out(files, [job.name for job in files.record.benchmarks], Clusters(address))
    if as_json:
        document = json.dumps(standings_json(files, found), indent=2)
        Console(highlight=False).print(document, markup=False, soft_wrap=True)
    else:
        print_standings(report_console(), files, found)
    raise typer.Exit(exit_code_of(one.counted for one in found))
