"""Ray actors that host the parts of ``gym_ray``: naming, placement, restart and metrics; no decision lives here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gym_ray.actors.training.rollout_collector import RolloutCollector

__all__ = ["RolloutCollector"]


def __getattr__(name: str) -> Any:
    """Load the collector of training loops, and Ray with it, when somebody asks for it."""
    if name == "RolloutCollector":
        from gym_ray.actors.training.rollout_collector import RolloutCollector

        return RolloutCollector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
