from __future__ import annotations

import copy
from typing import Any

import pytest

from gym_ray.dialects import CHAT, RESPONSES
from gym_ray.dialects.conversion.preparation import PreparedRequest, prepare
from gym_ray.errors import InvalidRequestError

EXTENSIONS = {"responses_compaction": frozenset({"required_prefix_token_ids"})}


def prepared(case: dict[str, Any]) -> PreparedRequest:
    body = copy.deepcopy(case["body"])
    if case["dialect"] == "responses_validate":  # the peer's second step; ours is the same call
        body = {**body, "stream": True}
    before = copy.deepcopy(body)
    dialect = CHAT if case["dialect"] == "chat" else RESPONSES
    try:
        return prepare(dialect, body, extensions=EXTENSIONS.get(case["dialect"], frozenset()))
    finally:
        assert body == before, "the caller's body was changed"


def test_vector(case: dict[str, Any]) -> None:
    expected = case["expected"]
    if expected.get("error") == "validation":
        with pytest.raises(InvalidRequestError):
            prepared(case)
        return
    request = prepared(case)
    assert request.body == expected.get("params", expected.get("body"))
    assert request.stream is True
    if "namespace_map" in expected:
        assert {flat: list(names) for flat, names in request.namespaces.names.items()} == expected["namespace_map"]
    if "include_usage" in expected:
        assert request.include_usage is expected["include_usage"]
