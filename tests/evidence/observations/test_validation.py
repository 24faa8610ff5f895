"""What comes out is new and whole, and payloads are carried over as they are."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from pydantic import ValidationError

from gym_ray.evidence.observations import (
    AgentInvocation,
    AgentObservationBundle,
    ModelCallRef,
    TrajectoryRecord,
    validated_bundle,
    validated_trajectory,
)

TURN = {
    "invocation_id": "i",
    "task_id": "T",
    "rollout_id": "R",
    "turn_no": 1,
    "timestamp": 1.5,
    "step_count": 0,
    "model_calls": [{"model_call_id": "a"}],
}
TRAJECTORY = {
    "task_id": "T",
    "rollout_id": "R",
    "invocations": [
        {
            "invocation_id": "i",
            "model_calls": [{"model_call_id": "a"}],
            "conversation": [{"role": "user", "content": "q"}],
        }
    ],
    "turns": [TURN],
    "model_calls": [{"model_call_id": "a"}],
    "tool_calls": [{"invocation_id": "i", "tool_call_id": "t"}],
    "gaps": [{"code": "of my own"}],
}


def objects_of(value: Any) -> set[int]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = {id(value)} if isinstance(value, dict | list) else set()
    return own.union(*map(objects_of, inner))


def test_payloads_are_neither_walked_nor_copied() -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop  # walking it would never end
    given = copy.deepcopy(TRAJECTORY)
    given["model_calls"][0] |= {"request": loop, "response": loop}
    given["turns"][0] |= {"question": loop, "answer": loop, "reasoning_content": loop}
    given["tool_calls"][0]["output"] = loop
    checked = validated_trajectory(given)
    shared = [
        checked["model_calls"][0]["request"],
        checked["model_calls"][0]["response"],
        checked["turns"][0]["question"],
        checked["turns"][0]["answer"],
        checked["turns"][0]["reasoning_content"],
        checked["tool_calls"][0]["output"],
    ]
    assert all(payload is loop for payload in shared)


def test_all_else_is_new_so_that_it_can_be_changed() -> None:
    given = copy.deepcopy(TRAJECTORY)
    first, second = validated_trajectory(given), validated_trajectory(given)
    assert not objects_of(first) & objects_of(given)
    assert not objects_of(first) & objects_of(second), "defaults are not shared either"
    assert given == TRAJECTORY


def test_what_is_built_from_models_is_the_same_as_what_is_built_from_objects() -> None:
    built = AgentObservationBundle(
        source="s", records=[AgentInvocation(invocation_id="i", model_calls=[ModelCallRef(model_call_id="a")])]
    )
    as_object = {"kind": "agent_invocation", "invocation_id": "i", "model_calls": [{"model_call_id": "a"}]}
    assert validated_bundle({"source": "s", "records": [as_object]}) == built.plain() == built.model_dump(mode="json")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_cannot_hold_are_refused(number: float) -> None:
    """They would be written as null, and a timestamp of null is no valid turn."""
    with pytest.raises(ValidationError, match="finite"):
        validated_trajectory(TRAJECTORY | {"turns": [TURN | {"timestamp": number}]})
    with pytest.raises(ValidationError):
        validated_trajectory(TRAJECTORY | {"model_calls": [{"duration_ms": number}]})


@pytest.mark.parametrize("name", ["task_id", "rollout_id"])
def test_a_turn_of_another_rollout_is_named(name: str) -> None:
    with pytest.raises(ValidationError, match="turn 1 of invocation 'i' is of task"):
        validated_trajectory(TRAJECTORY | {"turns": [TURN | {name: "other"}]})


def test_the_fields_that_hold_models_are_known() -> None:
    assert TrajectoryRecord.nested_fields == ("invocations", "turns", "model_calls", "tool_calls", "gaps")
    assert AgentInvocation.nested_fields == ("model_calls",)
    assert ModelCallRef.nested_fields == ("model_ref",)
