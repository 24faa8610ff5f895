from __future__ import annotations

import copy
from typing import Any

from gym_ray.export.names import mlflow_name
from gym_ray.export.view import exported_record


def test_vector(case: dict[str, Any]) -> None:
    if "key" in case:
        assert (mlflow_name(case["key"]) or "") == (case["sanitized"] or "")
        return
    record = copy.deepcopy(case["record"])
    assert exported_record(record) == case["exported"]
    assert record == case["record"]
