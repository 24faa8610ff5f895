"""``gym-ray eval submit``: every benchmark of a document as a Ray job, whose directory tells what became of it."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from gym_ray.cli.jobs.cluster import Address, job_server, job_server_address
from gym_ray.cli.jobs.plan import plan_json, print_plan
from gym_ray.cli.jobs.standing import Clusters, Standing, settle, watched
from gym_ray.cli.jobs.submission import Submitter, just_submitted, unfinished
from gym_ray.cli.jobs.tables import print_standings, standings_json
from gym_ray.cli.jobs.upload import Preflight
from gym_ray.cli.report import report_console
from gym_ray.cli.runtime import INTERRUPTED
from gym_ray.errors import SettingsError
from gym_ray.settings.overrides import COMMAND_LINE
from gym_ray.submission.benchmark_names import RESOLVED_CONFIG
from gym_ray.submission.computes import RayCompute
from gym_ray.submission.documents import Submission, check_submittable, read_submission
from gym_ray.submission.job_files import BenchmarkJob, JobFiles, read_job, write_job
from gym_ray.submission.job_states import exit_code_of
from gym_ray.submission.planning import BenchmarkPlan, SubmitPlan, job_name, plan_submit

__all__ = ["submit_job"]


def submit_job(
    ctx: typer.Context,
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="The submit document (YAML).")] = None,
    address: Address = None,
    working_dir: Annotated[Path | None, typer.Option("--working-dir", help="Directory to upload for the job.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done.")] = False,
    resolve_only: Annotated[bool, typer.Option("--resolve-only", help="Print the document, filled in.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end, and exit as the job did.")] = False,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="JOB_DIR", help="Start its unfinished benchmarks again.")
    ] = None,
) -> None:
    """Submit every benchmark of a document as a Ray job. Overrides of the document may follow as ++key=value.

    Exit code: 0 when all were submitted, 1 when one was not. With --wait: 0 when all are complete, 2 when one is
    incomplete, 1 when the infrastructure failed, 130 when one was stopped.
    """
    out = report_console()
    if resume is not None:
        if config is not None or dry_run or resolve_only:
            remedy = "a job goes on with the document that it was submitted with"
            raise SettingsError(COMMAND_LINE, "--resume", "takes no document, --dry-run or --resolve-only", remedy)
        files, jobs = _resume(resume, address, working_dir)
    else:
        submission = _document(config, ctx.args).settled(working_dir)
        if resolve_only:
            out.print(submission.resolved(redact=True), markup=False, soft_wrap=True, end="")
            return
        job_dir = Path(submission.job.output_path) / job_name(time.time(), secrets.token_hex(3))
        plan = plan_submit(submission, job_dir, environ=os.environ)
        if dry_run:
            _show(out, plan, as_json=as_json)
            return
        files, jobs = _submit(plan, address)
    raise typer.Exit(_report(out, files, jobs, address, as_json=as_json, wait=wait))


def _document(config: Path | None, overrides: Sequence[str]) -> Submission:
    if config is None:
        raise SettingsError(COMMAND_LINE, "CONFIG", "is missing", "name a submit document, or a job with --resume")
    return read_submission(config, overrides, environ=os.environ)


def _show(out: Console, plan: SubmitPlan, *, as_json: bool) -> None:
    """Show a plan and what it would upload; what would be refused on submission is refused here, after it was shown."""
    if as_json:
        out.print(json.dumps(plan_json(plan), indent=2), markup=False, soft_wrap=True)
    else:
        print_plan(out, plan)
    compute = plan.submission.compute
    if isinstance(compute, RayCompute):
        check_submittable(plan.submission)
        _preflight(plan.submission, compute, plan.benchmarks)


def _submit(plan: SubmitPlan, address: str | None) -> tuple[JobFiles, list[BenchmarkJob]]:
    """Submit a job; nothing is written before all that can be checked is."""
    compute = _ray_compute(plan.submission)
    preflight = _preflight(plan.submission, compute, plan.benchmarks)
    cluster = job_server(job_server_address(address, os.environ, recorded=compute.address))
    with preflight.copied() as upload:
        files = write_job(plan, created_at=time.time())
        submitter = Submitter(files, cluster, compute, upload)
        return files, [submitter.submit(benchmark.name) for benchmark in plan.benchmarks]


def _preflight(submission: Submission, compute: RayCompute, benchmarks: Sequence[BenchmarkPlan]) -> Preflight:
    """Return what would be uploaded, after it was shown and checked."""
    errors = _errors()
    preflight = Preflight.of(compute, submission.working_directory)
    preflight.show(errors)
    preflight.check(compute, benchmarks, os.environ, errors)
    return preflight


def _errors() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def _resume(job_dir: Path, address: str | None, working_dir: Path | None) -> tuple[JobFiles, list[BenchmarkJob]]:
    """Submit again what of a job is over and not complete."""
    files = read_job(job_dir)
    names = unfinished(files, given=address)
    if not names:
        return files, []
    submission = read_submission(files.directory / RESOLVED_CONFIG, environ=os.environ).settled(working_dir)
    compute = _ray_compute(submission)
    preflight = _preflight(submission, compute, ())
    recorded = next(job.address for job in files.record.benchmarks if job.name == names[0])
    cluster = job_server(job_server_address(address, os.environ, recorded=recorded))
    jobs = []
    with preflight.copied() as upload:
        submitter = Submitter(files, cluster, compute, upload)
        for name in names:
            files.queue_again(name)
            jobs.append(submitter.submit(name))
    return files, jobs


def _ray_compute(submission: Submission) -> RayCompute:
    """Return the cluster that a document asks for.

    Raises:
        SettingsError: It asks for something else, or for what no job on Ray can do.
    """
    check_submittable(submission)
    if not isinstance(submission.compute, RayCompute):
        where = ("compute", submission.compute_name)
        raise SettingsError(submission.place(*where), ".".join(where), "is no Ray cluster", "use type: ray")
    return submission.compute


def _report(
    out: Console, files: JobFiles, jobs: Sequence[BenchmarkJob], address: str | None, *, as_json: bool, wait: bool
) -> int:
    """Show what was submitted, or, after waiting, how it ended; return the exit code."""
    errors = _errors()
    failed = [job for job in jobs if job.state != "submitted"]
    for job in failed:
        errors.print(f"[bold red]{escape(job.name)}[/] {escape(job.message)}")
    if not wait:
        found = just_submitted(files)
        _print(out, files, found, as_json=as_json)
        return int(bool(failed))
    errors.print(f"[dim]job[/] {escape(str(files.directory))}")
    try:
        found = _wait(files, Clusters(address), errors)
    except KeyboardInterrupt:
        errors.print(f"the job goes on; `gym-ray eval stop {escape(str(files.directory))}` ends it")
        return INTERRUPTED
    _print(out, files, found, as_json=as_json)
    return exit_code_of(one.counted for one in found)


def _wait(files: JobFiles, clusters: Clusters, errors: Console) -> list[Standing]:
    """Say each change of a state until all benchmarks are over, and return how they stand."""
    names = [job.name for job in files.record.benchmarks]
    said: dict[str, str] = {}
    found: list[Standing] = []
    for found in watched(files, names, clusters):
        for one in found:
            text = f"{one.state}: {one.note}" if one.note else one.state
            if said.get(one.job.name) != text:
                said[one.job.name] = text
                errors.print(f"[dim]{escape(one.job.name)}[/] {escape(text)}")
    return [settle(files, one) for one in found]


def _print(out: Console, files: JobFiles, found: Sequence[Standing], *, as_json: bool) -> None:
    if as_json:
        out.print(json.dumps(standings_json(files, found), indent=2), markup=False, soft_wrap=True)
    else:
        print_standings(out, files, found)
