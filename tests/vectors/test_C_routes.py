"""The text that holds expert routes, both ways, and which tokens rows belong to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture.adapters import (
    MISSING_ROUTE_SENTINEL,
    classify_route_span,
    decode_routed_experts,
    encode_routed_experts,
    routed_experts_token_count,
)


def decoded(payload: Any) -> dict[str, Any]:
    routes = decode_routed_experts(payload)
    return {
        "values": routes.values.tolist(),
        "dtype": routes.dtype,
        "num_layers": routes.num_layers,
        "topk": routes.topk,
    }


def answer(case: dict[str, Any]) -> Any:
    if case["id"].startswith("encode/"):
        return encode_routed_experts(case["values"], case["dtype"])
    if case["id"].startswith("decode/"):
        return decoded(case["payload"])
    return classify_route_span(case["carry_len"], case["generation_len"], case["staged_route_len"])


def check(expected: dict[str, Any], call: Any) -> None:
    if "error" in expected:
        assert expected["error"] == "ValueError"
        with pytest.raises(ValueError, match=r"route|length must"):
            call()
    else:
        assert call() == expected["ok"]


def test_vector(case: dict[str, Any], document: dict[str, Any]) -> None:
    check(case, lambda: answer(case))
    if "token_count" in case:
        check(case["token_count"], lambda: routed_experts_token_count(case["payload"]))
    if case["id"].startswith("encode/") and "ok" in case:
        assert encode_routed_experts(np.array(case["values"]), case["dtype"]) == case["ok"]
        again = decode_routed_experts(case["ok"])
        assert encode_routed_experts(again.values, again.dtype) == case["ok"]
    assert document["missing_route_sentinel"] == MISSING_ROUTE_SENTINEL
