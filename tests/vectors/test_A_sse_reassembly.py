from __future__ import annotations

from typing import Any

from gym_ray.dialects.reassembly import reassemble


def test_vector(case: dict[str, Any]) -> None:
    assert reassemble(case["dialect"], case["raw"].encode()) == case["expected"]
