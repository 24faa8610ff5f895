from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.export.view import exported_record

PAYLOADS = {"request": {"q": "SECRET"}, "response": {"a": "SECRET"}, "request_raw": "SECRET", "response_raw": "SECRET"}
RECORD = {
    "reward": 1.0,
    "response": {"output": ["kept"]},
    "ng_model_call_capture": {"rollout_id": "0-0", "calls": [{"model_call_id": "c0", **PAYLOADS}, "SECRET", None]},
    "ng_trajectory": {"model_calls": [PAYLOADS]},
    "ng_agent_observations": {
        "source": "toy",
        "records": [
            {"kind": "agent_invocation", "invocation_id": "a", "conversation": [{"content": "SPOKEN"}]},
            {"kind": "tool_call", "invocation_id": "a", "tool_call_id": "t"},
        ],
        "gaps": [{"code": "custom"}],
    },
    "ng_perf": {"num_turns": 1},
}


def test_payloads_stay_behind_and_all_else_goes() -> None:
    before = copy.deepcopy(RECORD)
    exported = exported_record(RECORD)
    assert exported == {
        **{key: RECORD[key] for key in ("reward", "response", "ng_agent_observations", "ng_perf")},
        "ng_model_call_capture": {"rollout_id": "0-0", "calls": [{"model_call_id": "c0"}]},
    }
    assert before == RECORD


def test_conversations_can_stay_behind_too() -> None:
    exported = exported_record(RECORD, export_conversations=False)
    assert exported["ng_agent_observations"] == {
        "source": "toy",
        "records": [
            {"kind": "agent_invocation", "invocation_id": "a"},
            {"kind": "tool_call", "invocation_id": "a", "tool_call_id": "t"},
        ],
        "gaps": [{"code": "custom"}],
    }
    assert "SPOKEN" not in json.dumps(exported)


@pytest.mark.parametrize("capture", ["text", None, 7, ["calls"]])
def test_a_capture_that_is_no_object_stays_behind(capture: Any) -> None:
    assert exported_record({"reward": 0.0, "ng_model_call_capture": capture}) == {"reward": 0.0}


@pytest.mark.parametrize("observations", ["text", None, ["SPOKEN"]])
def test_observations_that_are_no_object_stay_behind_only_with_conversations(observations: Any) -> None:
    record = {"reward": 0.0, "ng_agent_observations": observations}
    assert exported_record(record) == record
    assert exported_record(record, export_conversations=False) == {"reward": 0.0}


def test_records_that_are_no_list_stay_behind_with_conversations() -> None:
    record = {"ng_agent_observations": {"source": "toy", "records": {"conversation": "SPOKEN"}}}
    assert exported_record(record, export_conversations=False) == {"ng_agent_observations": {"source": "toy"}}


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["calls", "request", "response", "records", "conversation", "x"]), inner),
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["ng_model_call_capture", "ng_trajectory", "reward"]), json_values))
def test_whatever_shape_a_record_has_no_call_keeps_a_payload(record: dict[str, Any]) -> None:
    before = copy.deepcopy(record)
    exported = exported_record(record)
    assert "ng_trajectory" not in exported
    calls = exported.get("ng_model_call_capture", {}).get("calls", [])
    assert not [key for call in calls for key in call if key in PAYLOADS]
    assert exported.get("reward") == record.get("reward")
    assert record == before
