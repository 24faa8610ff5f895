from __future__ import annotations

from typing import Any

from gym_ray.evidence.trajectory.tool_calls import merged_tool_calls


def call(status: str = "unknown", *, invocation: str = "root", output: Any = None, **fields: Any) -> dict[str, Any]:
    names = ("sandbox_id", "tool_name", "error_type", "started_at", "completed_at", "duration_ms", "timing_source")
    whole = {"kind": "tool_call", "invocation_id": invocation, "tool_call_id": "t", **dict.fromkeys(names)}
    return {**whole, "status": status, **fields, "output": output}


def observed(status: str = "unknown", **fields: Any) -> dict[str, Any]:
    return {name: value for name, value in call(status, **fields).items() if name != "output"}


def invocation(name: str, *outputs: Any) -> dict[str, Any]:
    items = [{"type": "function_call_output", "call_id": "t", "output": output} for output in outputs]
    return {"invocation_id": name, "conversation": [{"type": "function_call", "call_id": "t"}, *items]}


def test_the_last_output_of_the_calls_own_invocation_counts() -> None:
    """D88: an agent that answers a call twice is taken at its last word; another invocation says nothing of it."""
    shown = [invocation("other", "elsewhere"), invocation("root", "first", "last")]
    assert merged_tool_calls([], [observed("completed")], shown) == [call("completed", output="last")]
    assert merged_tool_calls([call(output="old")], [observed()], shown) == [call(output="last")]
    assert merged_tool_calls([call(output="old")], [observed()], []) == [call(output="old")]


def test_without_an_observation_a_producers_calls_stay_as_they_are() -> None:
    assert merged_tool_calls([call(output="old")], [], [invocation("root", "new")]) == [call(output="old")]
    assert merged_tool_calls([], [], [invocation("root", "new")]) == [], "a call that nobody observed is none"


def test_what_was_observed_goes_over_what_was_produced_field_by_field() -> None:
    """D87: what an observation does not know takes nothing away."""
    produced = call("failed", error_type="E", duration_ms=1.0)
    (merged,) = merged_tool_calls([produced], [observed(duration_ms=2.0, tool_name="look")], [])
    assert merged == call("failed", error_type="E", duration_ms=2.0, tool_name="look")
    (merged,) = merged_tool_calls([produced], [observed("timeout"), observed("completed")], [])
    assert merged["status"] == "completed"
    assert merged_tool_calls([produced], [observed(invocation="sub")], []) == [produced, call(invocation="sub")]
    assert produced == call("failed", error_type="E", duration_ms=1.0)
