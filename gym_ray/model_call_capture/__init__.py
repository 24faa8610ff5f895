"""Evaluation evidence: every model call of a rollout, as it went over the wire."""

from gym_ray.correlation import (
    apply_rollout_prefix,
    current_rollout_id,
    derive_rollout_id,
    rollout_path_prefix,
)
from gym_ray.model_call_capture.middleware import CaptureMiddleware
from gym_ray.model_call_capture.records import (
    ModelCallRecord,
    aggregate_model_call_metrics,
    aggregate_model_call_records,
    read_available_model_call_records,
    read_model_call_records,
)
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_call_capture.writer import CaptureWriter

__all__ = [
    "CaptureMiddleware",
    "CaptureStore",
    "CaptureWriter",
    "ModelCallRecord",
    "aggregate_model_call_metrics",
    "aggregate_model_call_records",
    "apply_rollout_prefix",
    "current_rollout_id",
    "derive_rollout_id",
    "read_available_model_call_records",
    "read_model_call_records",
    "rollout_path_prefix",
]
