from __future__ import annotations

from typing import Any

from gym_ray.model_call_capture.records import aggregate_model_call_records, build_record


def test_vector(case: dict[str, Any]) -> None:
    totals = aggregate_model_call_records(build_record(exchange, i) for i, exchange in enumerate(case["exchanges"]))
    assert totals == case["expected"]
    assert list(totals) == list(case["expected"])
