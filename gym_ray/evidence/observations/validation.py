"""Checks what a reply brought and returns it as plain objects, whole: every field, null where nothing was said.

Payloads are carried over and never walked, so the time does not grow with their size.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from gym_ray.evidence.observations.bundle import AgentObservationBundle
from gym_ray.evidence.observations.trajectory import TrajectoryRecord

__all__ = ["plain", "validated_bundle", "validated_trajectory"]


def validated_bundle(value: Any) -> dict[str, Any]:
    """Return a reply's ``ng_agent_observations`` as a full bundle (D71, D72).

    The result and every record in it are new; what a conversation's items only carry is shared with ``value``.

    Raises:
        pydantic.ValidationError: It is no bundle; the error names the field.
    """
    return plain(AgentObservationBundle.model_validate(value))


def validated_trajectory(value: Any) -> dict[str, Any]:
    """Return a reply's ``ng_trajectory`` as a full record (D71, D73).

    The result and every record in it are new; payloads are shared with ``value``.

    Raises:
        pydantic.ValidationError: It is no trajectory; the error names the field.
    """
    return plain(TrajectoryRecord.model_validate(value))


def plain(model: BaseModel) -> dict[str, Any]:
    """Return the fields of a validated model as a plain object, nested models too; payloads stay as they are."""
    members = dict(vars(model))
    for name, value in members.items():
        if isinstance(value, BaseModel):
            members[name] = plain(value)
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            members[name] = [plain(each) for each in value]
    return members
