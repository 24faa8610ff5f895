from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gym_ray import exact_json
from gym_ray.errors import RolloutIdError
from gym_ray.model_call_capture.attachment import (
    CALLS_MISSING,
    OPEN_CALLS,
    Gap,
    attach,
    build_attachment,
)
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.records import ModelCallRecord

LINE = (
    b'{"model_call_id":"c0","latency_ms":95.5,"response":{"usage":{"input_tokens":40}},'
    b'"request":{"n":18446744073709551616}}\n'
)


def codes(attachment: dict[str, Any]) -> list[str]:
    return [gap["code"] for gap in attachment.get("gaps", [])]


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (CaptureSnapshot(LINE, False), []),
        (CaptureSnapshot(None, False), ["model_call_capture_no_records"]),
        (CaptureSnapshot(b"\n \n", False), ["model_call_capture_no_records"]),
        (CaptureSnapshot(None, True), ["model_call_capture_incomplete"]),
        (
            CaptureSnapshot(LINE + b"{", True),
            ["model_call_capture_records_unreadable", "model_call_capture_incomplete"],
        ),
        (CaptureSnapshot(b'{"model_ref":{}}', False), ["model_call_capture_records_unreadable"]),
        (CaptureSnapshot(None, False, "I/O error"), ["model_call_capture_unreadable"]),
        (CaptureSnapshot(None, True, "I/O error"), ["model_call_capture_incomplete", "model_call_capture_unreadable"]),
    ],
)
def test_every_loss_is_named(snapshot: CaptureSnapshot, expected: list[str]) -> None:
    assert codes(build_attachment("0-0", snapshot)) == expected


def test_worked_example() -> None:
    attachment = build_attachment("12-3-a1", CaptureSnapshot(LINE + b"{bad\n", True))
    assert attachment["rollout_id"] == "12-3-a1"
    assert attachment["metrics"] == {
        "tokens_in": 40, "tokens_out": None, "tokens_reasoning": None, "tokens_total": None, "cached_tokens": None,
        "latency_total_ms": 95.5, "num_calls": 1,
    }  # fmt: skip
    assert attachment["gaps"] == [
        {"code": "model_call_capture_records_unreadable", "detail": "count=1"},
        {"code": "model_call_capture_incomplete"},
    ]
    assert "gaps" not in build_attachment("0-0", CaptureSnapshot(LINE, False))


def test_what_the_reader_knows_beyond_the_file_comes_last() -> None:
    gaps = [Gap(OPEN_CALLS, "c1"), Gap(CALLS_MISSING, "c2", invocation_id="root")]
    attachment = build_attachment("0-0", CaptureSnapshot(None, False), extra_gaps=gaps)
    assert attachment["gaps"] == [
        {"code": "model_call_capture_no_records"},
        {"code": "model_call_capture_open_calls", "detail": "c1"},
        {"code": "model_call_capture_calls_missing", "detail": "c2", "invocation_id": "root"},
    ]


def test_payloads_only_on_request_and_exact() -> None:
    (call,) = build_attachment("0-0", CaptureSnapshot(LINE, False))["calls"]
    assert "request" not in call
    assert call["model"] is None
    whole = build_attachment("0-0", CaptureSnapshot(LINE, False), include_payloads=True)
    assert whole["calls"][0]["request"] == {"n": 2**64}
    assert exact_json.loads(exact_json.dumps(whole)) == whole


def test_attach_adds_one_field_and_changes_nothing() -> None:
    record = {
        "_ng_task_index": 1,
        "_ng_rollout_index": 2,
        "_ng_attempt_index": 1,
        "reward": None,
        "ng_model_call_capture": 5,
    }
    result = attach(record, CaptureSnapshot(LINE, False))
    assert result["ng_model_call_capture"]["rollout_id"] == "1-2-a1"
    assert record["ng_model_call_capture"] == 5
    assert {key: value for key, value in result.items() if key != "ng_model_call_capture"} == {
        key: value for key, value in record.items() if key != "ng_model_call_capture"
    }
    assert attach(record, None) is record
    assert attach({"reward": 1.0}, CaptureSnapshot(LINE, False)) == {"reward": 1.0}
    with pytest.raises(RolloutIdError):
        attach({"_ng_rollout_id": "../x"}, CaptureSnapshot(LINE, False))


def test_observations_are_joined_or_the_gap_says_not() -> None:
    record = {"_ng_rollout_id": "r", "ng_agent_observations": {"records": []}}

    def join(observations: Any, calls: Sequence[ModelCallRecord]) -> Any:
        return {"records": [call.model_call_id for call in calls]}

    def refuse(observations: Any, calls: Sequence[ModelCallRecord]) -> Any:
        raise ValueError("records: not a list")

    joined = attach(record, CaptureSnapshot(LINE, False), join_observations=join)
    assert joined["ng_agent_observations"] == {"records": ["c0"]}
    assert codes(joined["ng_model_call_capture"]) == []
    for refused in (refuse, None):
        result = attach(record, CaptureSnapshot(LINE, False), join_observations=refused, extra_gaps=[Gap(OPEN_CALLS)])
        assert result["ng_agent_observations"] == {"records": []}
        assert codes(result["ng_model_call_capture"]) == [OPEN_CALLS, "agent_observation_join_failed"]
