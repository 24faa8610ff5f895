from __future__ import annotations

from typing import Any

from gym_ray.model_call_capture.records import aggregate_model_call_records, build_record


def test_vector(case: dict[str, Any]) -> None:
    records = [build_record(exchange, index) for index, exchange in enumerate(case["exchanges"])]
    calls = [record.as_json(include_payloads=False) for record in records]
    assert calls == case["calls"]
    assert [list(call) for call in calls] == [list(call) for call in case["calls"]]
    assert aggregate_model_call_records(records) == case["metrics"]
