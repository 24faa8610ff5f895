"""What a run is told, taken from its settings and checked before Ray starts."""

from __future__ import annotations

from pathlib import Path

from gym_ray.capture_location import CaptureLocation
from gym_ray.cli.eval_aggregate import aggregation_options
from gym_ray.cli.eval_health import check_ids
from gym_ray.errors import SettingsError
from gym_ray.rollouts.ending import EndPlan
from gym_ray.rollouts.planning import run_plan
from gym_ray.rollouts.rows.input_rows import read_rows
from gym_ray.rollouts.run_files.run_resume import can_resume
from gym_ray.rollouts.run_files.run_start import RunLock
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan
from gym_ray.settings import RunSettings

__all__ = ["check_plan", "end_plan", "plan_of", "shared_places"]


def plan_of(settings: RunSettings) -> RunPlan:
    """Return the run that the settings ask for.

    Raises:
        SettingsError: Input or output is missing, or an ignored check is none.
    """
    if settings.salvage and not settings.resume_from_cache:
        remedy = "add --resume; without it a fresh run begins and sets earlier results aside"
        raise SettingsError("command line", "salvage", "goes with a run that is taken up again", remedy)
    source, output = settings.input_jsonl_fpath, settings.output_jsonl_fpath
    if output is None:
        raise SettingsError("command line", "output_jsonl_fpath", "is required", "pass --output RECORDS.jsonl")
    paths = RunPaths.of(output)
    if source is None:
        if not (settings.resume_from_cache and can_resume(paths)):
            raise SettingsError("command line", "input_jsonl_fpath", "is required", "pass --input ROWS.jsonl")
        source = paths.materialised
    ignored = check_ids(settings.health_check_ignored_checks, "health_check_ignored_checks")
    return run_plan(settings, paths, source, ignored_checks=ignored)


def end_plan(settings: RunSettings) -> EndPlan:
    """Return what the settings want made of the records of a run."""
    return EndPlan(
        aggregation=None if settings.disable_aggregation else aggregation_options(settings),
        check_health=not settings.disable_health_check,
        ignored_checks=frozenset(settings.health_check_ignored_checks),
        health_workers=settings.health_check_workers,
        require_complete=settings.require_complete,
    )


def check_plan(plan: RunPlan) -> None:
    """Read every row and try the output's lock, so that a mistake costs a moment and touches nothing.

    Raises:
        InputError: A row cannot be used.
        StorageError: The output cannot be written, or another collector writes it.
    """
    if not (plan.resume and can_resume(plan.paths)):
        for _ in read_rows(plan.source, plan.options):
            pass
    RunLock(plan.paths).close()


def shared_places(settings: RunSettings, plan: RunPlan) -> list[CaptureLocation | Path]:
    """Return what every node must see as one place (D136): outputs, captures, tokens.

    Where captures are handed to one writer, nobody but the node of this command joins, so nothing must be shared.
    """
    if settings.model_call_capture_writer == "hosted":
        return []
    places = (plan.paths.output.parent, plan.captures, settings.token_dir)
    return [place for place in places if place is not None]
