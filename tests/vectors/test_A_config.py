from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gym_ray.settings import CaptureSettings


def test_vector(case: dict[str, Any]) -> None:
    expected = case["expected"]
    if "error" in expected:
        with pytest.raises(ValidationError) as caught:
            CaptureSettings.model_validate(case["config"])
        found = caught.value.errors()
        assert [(e["type"], list(e["loc"])) for e in found] == [(e["type"], e["loc"]) for e in expected["error"]]
        for error, wanted in zip(found, expected["error"], strict=True):
            assert [m for m in wanted["mentions"] if m not in error["msg"]] == []
        return
    settings = CaptureSettings.model_validate(case["config"])
    directories = [] if settings.capture_dir is None else [str(settings.capture_dir)]
    assert {"observability_enabled": settings.observability_enabled, "capture_dirs": directories} == expected
