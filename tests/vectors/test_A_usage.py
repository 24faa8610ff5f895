from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gym_ray.dialects.usage import token_counts


def test_vector(case: dict[str, Any]) -> None:
    assert asdict(token_counts(case["usage"])) == case["expected"]
