from __future__ import annotations

from typing import Any

import pytest

from gym_ray.evidence.trajectory.turns import derived_turns

RESPONSE = {"output": [{"type": "function_call", "call_id": "t", "name": "look", "arguments": "{}"}]}


def call(number: int = 0, response: Any = RESPONSE, **times: float | None) -> dict[str, Any]:
    metadata = {"model_ref": {"type": "responses_api_models", "name": "p"}, "response_id": f"r{number}"}
    request = {"input": f"q{number}"}
    named = {"model_call_id": f"c{number}", "request": request, "response": response, "response_metadata": metadata}
    return {**named, "started_at": None, "completed_at": None, **times}


def turns(*calls: dict[str, Any], owners: list[str | None], resolved: bool | None = None) -> list[dict[str, Any]]:
    return derived_turns("task", "0-0", calls, owners, resolved=resolved)


@pytest.mark.parametrize(
    ("times", "timestamp"),
    [
        ({"started_at": 5.0, "completed_at": 7.0}, 5.0),
        ({"started_at": 0.0, "completed_at": 7.0}, 0.0),
        ({"completed_at": 7.0}, 7.0),
        ({}, 0.0),
    ],
)
def test_a_turn_begins_when_its_call_did_else_when_it_ended(times: dict[str, float], timestamp: float) -> None:
    (turn,) = turns(call(**times), owners=["root"])
    assert turn["timestamp"] == timestamp
    assert isinstance(turn["timestamp"], float)


def test_turns_are_numbered_and_count_the_tool_calls_of_their_own_invocation() -> None:
    found = turns(*map(call, range(4)), owners=["a", "b", None, "a"])
    assert [(turn["invocation_id"], turn["turn_no"], turn["step_count"]) for turn in found] == [
        ("a", 1, 0),
        ("b", 1, 0),
        ("a", 2, 1),
    ]
    assert [turn["model_calls"][0]["model_call_id"] for turn in found] == ["c0", "c1", "c3"]


def test_a_call_without_an_answer_is_no_turn_and_the_last_turn_is_resolved() -> None:
    found = turns(call(0), call(1, None), call(2), call(3, None), owners=["a"] * 4, resolved=False)
    assert [(turn["question"], turn["turn_no"], turn["resolved"]) for turn in found] == [
        ("q0", 1, None),
        ("q2", 2, False),
    ]
    assert turns(call(0, None), owners=["a"], resolved=True) == []
