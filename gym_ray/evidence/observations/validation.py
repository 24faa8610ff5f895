"""Checks what a reply brought and returns it as plain objects, whole: every field, null where nothing was said.

Payloads are carried over and never walked, so the time does not grow with their size.
"""

from __future__ import annotations

from typing import Any

from gym_ray.evidence.observations.bundle import AgentObservationBundle
from gym_ray.evidence.observations.plain_bundle import plain_bundle
from gym_ray.evidence.observations.trajectory import TrajectoryRecord

__all__ = ["validated_bundle", "validated_trajectory"]


def validated_bundle(value: Any) -> dict[str, Any]:
    """Return a reply's ``ng_agent_observations`` as a full bundle (D71, D72).

    The result and every record in it are new; what a conversation's items only carry is shared with ``value``.

    Raises:
        pydantic.ValidationError: It is no bundle; the error names the field.
    """
    plain = plain_bundle(value)
    return AgentObservationBundle.model_validate(value).plain() if plain is None else plain


def validated_trajectory(value: Any) -> dict[str, Any]:
    """Return a reply's ``ng_trajectory`` as a full record (D71, D73).

    The result and every record in it are new; payloads are shared with ``value``.

    Raises:
        pydantic.ValidationError: It is no trajectory; the error names the field.
    """
    return TrajectoryRecord.model_validate(value).plain()
