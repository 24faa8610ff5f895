from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from gym_ray.evidence.exact_join import exact_join
from gym_ray.evidence.matching import CallIdentity
from gym_ray.evidence.observations import validated_bundle
from gym_ray.model_call_capture.call_views import build_view


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_without_nulls(member) for member in value]
    return value


def test_vector(case: dict[str, Any]) -> None:
    expected = case["expected_exclude_none"]
    if "error" in expected:
        assert expected == {"error": "ValidationError"}
        with pytest.raises(ValidationError):
            validated_bundle(case["bundle"])
        return
    bundle = validated_bundle(case["bundle"])
    given = copy.deepcopy(bundle)
    calls = [CallIdentity.of(build_view(exchange, index)) for index, exchange in enumerate(case["exchanges"])]
    joined = exact_join(bundle, calls)
    assert _without_nulls(joined.bundle) == expected
    assert bundle == given
    assert exact_join(joined.bundle, calls) == joined
    assert validated_bundle(joined.bundle) == joined.bundle
