"""Offloaded payloads of Megatron beyond the vectors: arrays, and indices of what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture.adapters import MegatronCaptureAdapter


def test_arrays_are_handed_on_as_they_are() -> None:
    ids, log_probs = np.array([1, 2], np.int32), np.array([-0.5, -1.5], np.float32)
    payload = {"prompt_token_ids": ids, "generated_token_ids": ids, "generated_log_probs": log_probs}
    adapter = MegatronCaptureAdapter()
    assert adapter.extract_prompt_ids(payload) is ids
    assert adapter.extract_generation(payload)[0] is ids
    assert adapter.extract_generation(payload)[1] is log_probs


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"generated_token_ids": [1, 2, True]}, r"generated_token_ids: index 2: True is no token id"),
        ({"generated_token_ids": [1], "generated_log_probs": [None]}, "generated_log_probs: index 0: None"),
        ({"generated_token_ids": np.array([1.0])}, "an array of integers is needed, not float64"),
        ({"generated_token_ids": np.array([[1]])}, r"shape \(1, 1\)"),
        ({"generated_token_ids": [1], "generated_log_probs": np.array(["a"])}, "an array of numbers is needed"),
        ({"generated_token_ids": [1], "generated_log_probs": {0.5}}, "not set"),
        ({"generated_token_ids": {"a": 1}}, "not dict"),
    ],
)
def test_what_is_not_exact_is_refused_with_its_place(payload: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        MegatronCaptureAdapter().extract_generation(payload)
