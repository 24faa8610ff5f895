"""What a step of a training loop is told, taken from the settings of the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from gym_ray.errors import SettingsError
from gym_ray.rollouts.planning import run_plan
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.training.step import StepPlan
from gym_ray.settings import RunSettings

__all__ = ["check_limits", "step_plan"]

_INPUT: Final = "_input.jsonl"


def check_limits(where: str, limits: Mapping[str, float | None], *, whole: bool = False, least: int = 0) -> None:
    """Refuse limits that limit nothing, before anything runs.

    Args:
        where: Who was given them, for the message.
        limits: Limits by name; None is no limit.
        whole: They are whole numbers of ``least`` and more; else numbers above 0.
        least: See ``whole``.

    Raises:
        SettingsError: One is something else; the message names it.
    """
    for name, limit in limits.items():
        if limit is None:
            continue
        is_number = isinstance(limit, int if whole else int | float) and not isinstance(limit, bool)
        if not is_number or not (limit >= least if whole else limit > 0):
            right = f"a whole number, {least} or more" if whole else "seconds, more than 0"
            raise SettingsError(where, name, f"{limit!r} is no limit", f"give {right}, or None for none")


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
