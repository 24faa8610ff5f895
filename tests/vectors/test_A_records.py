from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from gym_ray.model_call_capture.records import build_record


def test_vector(case: dict[str, Any]) -> None:
    expected = case["expected"]
    if "error" in expected:
        with pytest.raises(ValidationError):
            build_record(case["exchange"], case["call_index"])
        return
    record = build_record(case["exchange"], case["call_index"])
    assert record.as_json() == expected
    assert list(record.as_json()) == list(expected)
    assert json.loads(record.model_dump_json()) == expected
