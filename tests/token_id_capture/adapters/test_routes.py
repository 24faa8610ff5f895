"""The text that holds expert routes beyond the vectors: real sizes, all types, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture.adapters import decode_routed_experts, encode_routed_experts, routed_experts_token_count


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 1), (3, 1, 1), (1000, 24, 8)])
def test_what_was_encoded_is_decoded_and_encodes_alike(dtype: str, shape: tuple[int, int, int]) -> None:
    values = np.random.default_rng(1).integers(-1, 100, shape)
    payload = encode_routed_experts(values, dtype)
    routes = decode_routed_experts(payload)
    assert (routes.dtype, routes.num_layers, routes.topk) == (dtype, shape[1], shape[2])
    assert np.array_equal(routes.values, values)
    assert not routes.values.flags.writeable
    assert routed_experts_token_count(payload) == shape[0]
    for form in (routes.values, values.tolist(), values.astype(">i8"), np.asfortranarray(values)):
        assert encode_routed_experts(form, dtype) == payload


@pytest.mark.parametrize(
    ("values", "dtype", "why"),
    [
        (np.zeros((2, 2)), "int16", "by token, layer and rank"),
        (np.zeros((2, 2, 2)), "int16", "integers"),
        (np.zeros((0, 2, 2), int), "int16", "shape"),
        (np.full((1, 1, 1), 40000), "int16", "from 40000 to 40000 do not fit int16"),
        (np.full((1, 1, 1), -129), "int8", "do not fit int8"),
        ([[[2**70]]], "int32", "integers by token|even block"),
        ([[[1], [2, 3]]], "int16", "no even block"),
        ([[[1.0]]], "int16", "integers by token"),
        ([[1]], "int16", "lists of layers"),
        ("nrlre1", "int16", "nested lists, not str"),
    ],
)
def test_values_that_are_no_routes_are_refused(values: Any, dtype: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        encode_routed_experts(values, dtype)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ("nrlre2:int16:1x1x1:AQA=", "look like"),
        ("nrlre1:int16:1x1x1:AQA=:", "look like"),
        ("nrlre1:int16:0x1x1:", "empty side"),
        ("nrlre1:int16:-1x1x1:AQA=", "<T>x<L>x<K>"),
        ("nrlre1:int16:1_0x1x1:AQA=", "<T>x<L>x<K>"),
        ("nrlre1:int16: 1x1x1:AQA=", "<T>x<L>x<K>"),
        ("nrlre1:int16:1x1x1:AQA", "no base64"),
        ("nrlre1:int16:1x1x1:AQ A=", "no base64"),
        ("nrlre1:int16:1x1x1:AQB=", "not the base64 that its bytes encode to"),
        ("nrlre1:int16:1x1x1:é", "no base64"),
        ("nrlre1:int16:9999999999x99999x9:AQA=", "bytes, not 2"),
        (None, "NoneType"),
        ({"a": 1}, "dict"),
    ],
)
def test_a_payload_that_is_none_is_refused(payload: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode_routed_experts(payload)


@pytest.mark.parametrize("payload", [None, {}, [], 7, "nrlre1:int16", "garbage"])
def test_tokens_without_a_header_are_not_counted(payload: Any) -> None:
    with pytest.raises(ValueError, match="expert routes"):
        routed_experts_token_count(payload)
