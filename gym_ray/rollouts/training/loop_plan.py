"""What a step of a training loop is told, taken from the settings of the loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from gym_ray.rollouts.planning import run_plan
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.training.step import StepPlan
from gym_ray.settings import RunSettings

__all__ = ["step_plan"]

_INPUT: Final = "_input.jsonl"


def step_plan(
    settings: RunSettings, source: Path, rollout_timeout_s: float | None, max_in_flight: int | None
) -> StepPlan:
    """Return the plan of the step whose rows are in ``source``.

    It differs from an evaluation: ids are unique to the step, repeats of a row follow each other, nothing is resumed,
    and training rows are made where tokens are captured.

    Args:
        settings: Settings of the loop.
        source: ``step-<n>_input.jsonl``.
        rollout_timeout_s: Time for one rollout, None for that of the settings.
        max_in_flight: Rollouts at once, None for that of the settings.

    Raises:
        SettingsError: A file that the settings name cannot be used.
    """
    paths = RunPaths.of(source.with_name(source.name.removesuffix(_INPUT) + ".jsonl"))
    run = run_plan(settings, paths, source)
    limits = run.settings
    limits = replace(
        limits,
        run_timeout_s=limits.run_timeout_s if rollout_timeout_s is None else rollout_timeout_s,
        num_samples_in_parallel=limits.num_samples_in_parallel if max_in_flight is None else max_in_flight,
        dispatch_budget_s=None,
        drain_margin_s=None,
    )
    tokens = run.tokens
    if tokens is not None and tokens.config.training_rows == "none":
        tokens = replace(tokens, config=tokens.config.model_copy(update={"training_rows": "main"}))
    return StepPlan(
        replace(
            run,
            settings=limits,
            options=replace(run.options, unique_rollout_ids=True, interleave_repeats=False),
            tokens=tokens,
            token_tables=tokens is not None,
            resume=False,
            salvage=False,
            retry_invalid_judge_responses=False,
            dispatch_longest_first=False,
        )
    )
