"""What a call adds to its parent (C95, C96), from lists and packed."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from gym_ray.testing.spelled_values import spelled
from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.delta import build_staging_delta, packed_delta

ERRORS = {"ValueError": ValueError, "TypeError": TypeError}
INPUTS = ("prompt_token_ids", "generated_token_ids", "generated_log_probs", "prev_len")
NAMES = ("token_ids_delta", "token_mask_delta", "generation_log_probs_delta")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    cases = json.loads((metafunc.config.getoption("--vectors") / "C_delta.json").read_text("utf-8"))["delta"]
    metafunc.parametrize("delta", cases, ids=[case["id"] for case in cases])


def test_lists(delta: dict[str, Any]) -> None:
    given = [spelled(delta[name]) for name in INPUTS]
    if "error" in delta:
        with pytest.raises(ERRORS[delta["error"]]):
            build_staging_delta(*given)
        return
    before = copy.deepcopy(given)
    made = build_staging_delta(*given)
    assert dict(zip(NAMES, made, strict=True)) == delta["ok"]
    for column in made:
        column.clear()
    assert given == before


def test_arrays(delta: dict[str, Any]) -> None:
    prompt, generated = (np.array(spelled(delta[name]), np.uint32) for name in INPUTS[:2])
    log_probs = np.array(delta["generated_log_probs"], np.float64)
    if delta.get("error") == "ValueError":
        with pytest.raises(ValueError, match=r"prev_len|log probs|no token"):
            packed_delta(prompt, generated, log_probs, delta["prev_len"])
        return
    made = packed_delta(prompt, generated, log_probs, delta["prev_len"])
    columns = (made.token_ids, made.token_mask, made.log_probs)
    if "ok" in delta:
        assert dict(zip(NAMES, map(Column, columns), strict=True)) == delta["ok"]
    for column in columns:
        assert column.base is None
        assert not column.flags.writeable
