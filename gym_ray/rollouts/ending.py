"""What happens when a run has ended: metrics over all its records, health of them, and whether it counts as a success.

Records are durable by now. Whatever goes wrong here is reported and takes nothing away from them (D106, D119).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gym_ray.errors import GymRayError
from gym_ray.rollouts.collection import Progress
from gym_ray.rollouts.metrics.agent_entries import PostMetrics
from gym_ray.rollouts.metrics.aggregation import Aggregation, aggregate
from gym_ray.rollouts.metrics.scoring import AggregationOptions
from gym_ray.rollouts.reports.health_files import HealthOutcome, health_of_run
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_paths import RunPaths

__all__ = ["EndPlan", "RunEnding", "end_run", "incomplete", "nothing_produced"]


@dataclass(frozen=True, slots=True)
class EndPlan:
    """What is made of the records of a run.

    Attributes:
        aggregation: How they are aggregated, None not to (D117).
        check_health: Whether they are judged. Only aggregated runs are (D106).
        ignored_checks: Checks that do not run.
        health_workers: Processes for judging records anew.
        require_complete: Every row must have a result (D39).
    """

    aggregation: AggregationOptions | None = field(default_factory=AggregationOptions)
    check_health: bool = True
    ignored_checks: frozenset[str] = frozenset()
    health_workers: int | None = None
    require_complete: bool = False


@dataclass(frozen=True, slots=True)
class RunEnding:
    """What was made of the records.

    Attributes:
        aggregation: Their metrics, None when there are none.
        health: Their health, None when nobody looked.
        problems: What could not be done, one sentence each.
    """

    aggregation: Aggregation | None = None
    health: HealthOutcome | None = None
    problems: tuple[str, ...] = ()


def end_run(paths: RunPaths, plan: EndPlan, *, post: PostMetrics | None = None) -> RunEnding:
    """Aggregate and judge the records of a run; never raises for what a record holds or a report cannot be written.

    Args:
        paths: The run; nobody writes it any more.
        plan: What to make.
        post: Asks agents that aggregate themselves.
    """
    if plan.aggregation is None:
        return RunEnding()
    problems, aggregation, health = [], None, None
    try:
        with MaterialisedRows.of(paths) as rows:
            aggregation = aggregate(paths, rows, options=plan.aggregation, post=post)
    except (GymRayError, OSError) as error:
        problems.append(f"no metrics: {error}")
    if plan.check_health:
        try:
            health = health_of_run(paths, ignored=plan.ignored_checks, workers=plan.health_workers)
        except (GymRayError, OSError) as error:
            problems.append(f"no health report: {error}")
    return RunEnding(aggregation, health, tuple(problems))


def nothing_produced(progress: Progress, ending: RunEnding) -> bool:
    """Whether no row of the run, over all its collectors, has a result, and metrics count none without one (D38)."""
    if not progress.rows or progress.done or progress.unstored:
        return False
    return ending.aggregation is None or not ending.aggregation.metrics["overall"]["rollouts"]["counted_as_zero"]


def incomplete(plan: EndPlan, progress: Progress) -> bool:
    """Whether a run that must be complete is not: rows with a result are counted, not records (D39)."""
    return plan.require_complete and progress.done < progress.rows
