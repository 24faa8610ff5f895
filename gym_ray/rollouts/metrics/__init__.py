"""Metrics of a run: counted live while it goes on, and aggregated over its records when it is over."""

from __future__ import annotations

from gym_ray.rollouts.metrics.aggregation import Aggregation, aggregate
from gym_ray.rollouts.metrics.failed_rows import FailedRows
from gym_ray.rollouts.metrics.live import Distribution, MetricsRow, RunMetrics
from gym_ray.rollouts.metrics.scoring import AggregationOptions

__all__ = ["Aggregation", "AggregationOptions", "Distribution", "FailedRows", "MetricsRow", "RunMetrics", "aggregate"]
