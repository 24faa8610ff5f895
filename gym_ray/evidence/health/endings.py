"""Tells on which call each model of a rollout ended (D107, D108).

Start times alone order calls. Where one is missing, only a model whose every call failed is known to have ended badly.
"""

from __future__ import annotations

from collections.abc import Sequence

from gym_ray.evidence.health.view import CallFacts, RolloutView
from gym_ray.evidence.matching import ModelRef

__all__ = ["calls_by_model", "ended_on_failure", "is_terminal"]


def calls_by_model(view: RolloutView) -> dict[ModelRef | None, list[CallFacts]]:
    """Return the calls of each model server, in order."""
    groups: dict[ModelRef | None, list[CallFacts]] = {}
    for call in view.calls:
        groups.setdefault(call.model_ref, []).append(call)
    return groups


def ended_on_failure(view: RolloutView) -> list[tuple[CallFacts, list[CallFacts]]]:
    """Return, for each model that ended on a failed call, that call and all its calls."""
    if not any(call.failed for call in view.calls):
        return []
    endings = []
    for calls in calls_by_model(view).values():
        last = _last(calls)
        if all(call.failed for call in last):
            endings.append((last[-1], calls))
    return endings


def _last(calls: Sequence[CallFacts]) -> Sequence[CallFacts]:
    """Return the calls one of which was the last: all of them where a start time is missing."""
    starts = [call.started_at for call in calls if call.started_at is not None]
    if len(starts) < len(calls):
        return calls
    latest = max(starts)
    return [call for call in calls if call.started_at == latest]


def is_terminal(failed: CallFacts, calls: Sequence[CallFacts]) -> bool:
    """Return whether no call of the same model is, or may be, a success that came after a failed one.

    Args:
        failed: The failed call.
        calls: All calls of its model.
    """
    for call in calls:
        if call.failed:
            continue
        if failed.started_at is None or call.started_at is None or call.started_at >= failed.started_at:
            return False
    return True
