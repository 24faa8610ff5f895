"""Tells on which call each model of a rollout ended (D107, D108).

Start times alone order calls. Where one is missing, only a model whose every call failed is known to have ended badly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gym_ray.evidence.health.view import RolloutView
from gym_ray.evidence.matching import model_ref_of

__all__ = ["calls_by_model", "ended_on_failure", "is_terminal", "model_name"]


def model_name(call: Mapping[str, Any]) -> str | None:
    """Return the model server of a call as ``type/name``, None when it is unknown."""
    ref = model_ref_of(call.get("response_metadata") or {})
    return None if ref is None else f"{ref[0]}/{ref[1]}"


def calls_by_model(view: RolloutView) -> dict[str | None, list[int]]:
    """Return the places of the calls of each model server, in order."""
    groups: dict[str | None, list[int]] = {}
    for place, call in enumerate(view.calls):
        groups.setdefault(model_name(call), []).append(place)
    return groups


def ended_on_failure(view: RolloutView) -> list[tuple[int, list[int]]]:
    """Return, for each model that ended on a failed call, the place of that call and of all its calls."""
    if True not in view.failed:
        return []
    endings = []
    for places in calls_by_model(view).values():
        last = _last(view, places)
        if all(view.failed[place] for place in last):
            endings.append((last[-1], places))
    return endings


def _last(view: RolloutView, places: Sequence[int]) -> Sequence[int]:
    """Return the calls one of which was the last: all of them where a start time is missing."""
    starts = [view.calls[place].get("started_at") for place in places]
    if None in starts:
        return places
    latest = max(start for start in starts if start is not None)
    return [place for place, start in zip(places, starts, strict=True) if start == latest]


def is_terminal(view: RolloutView, failed: int, places: Sequence[int]) -> bool:
    """Return whether no call of the same model is, or may be, a success that came after a failed one.

    Args:
        view: The record.
        failed: Place of the failed call.
        places: Places of all calls of its model.
    """
    started = view.calls[failed].get("started_at")
    for place in places:
        if view.failed[place]:
            continue
        other = view.calls[place].get("started_at")
        if started is None or other is None or other >= started:
            return False
    return True
