"""Observations and trajectories that are taken or refused, and the whole form of what is taken (D70-D73)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from gym_ray.evidence import observations
from gym_ray.evidence.observations import validated_bundle, validated_trajectory
from gym_ray.evidence.observations.fields import Observed

WHOLE = {"AgentObservationBundle": validated_bundle, "TrajectoryRecord": validated_trajectory}


def places(errors: list[Any]) -> set[tuple[tuple[str, ...], str]]:
    """Where and why; the names of the choices of ``str or list`` belong to whoever declared them."""
    return {
        (tuple(str(part) for part in e["loc"] if str(part) != "str" and "[" not in str(part)), e["type"])
        for e in errors
    }


def test_vector(case: dict[str, Any]) -> None:
    model: type[Observed] = getattr(observations, case["model"])
    before = json.dumps(case["payload"])
    if not case["accepted"]:
        with pytest.raises(ValidationError) as refused:
            model.model_validate(case["payload"])
        assert places(refused.value.errors()) == places(case["errors"])
        return
    accepted = model.model_validate(case["payload"])
    dump = accepted.plain()
    assert dump == case["dump"]
    assert list(dump) == list(case["dump"])
    assert json.dumps(dump) == json.dumps(case["dump"]), "the order of members, at every depth"
    assert json.loads(accepted.model_dump_json()) == case["dump"]
    assert accepted.model_dump(mode="json") == case["dump"]
    if case["model"] in WHOLE:
        assert WHOLE[case["model"]](case["payload"]) == case["dump"]
        assert WHOLE[case["model"]](case["dump"]) == case["dump"], "a whole form stays as it is"
    assert json.dumps(case["payload"]) == before
