"""Where served answers carry their tokens (B17-B24), with arrays in place of lists as well."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture.records import (
    TOKEN_FIELDS,
    extract_token_fields,
    response_to_output_items,
    strip_token_fields,
)

SECTIONS = {"payload": "payloads", "strip": "strip", "uncontained": "uncontained"}
MESSAGES = {
    "several_carriers": "carry",
    "partial_token_metadata": r"lacks [a-z_]+",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument in SECTIONS.keys() & set(metafunc.fixturenames):
        document = json.loads((metafunc.config.getoption("--vectors") / "B_response_shapes.json").read_text("utf-8"))
        cases = document[SECTIONS[argument]]
        metafunc.parametrize(argument, cases, ids=[case["name"] for case in cases])


def check(expected: dict[str, Any], function: Any, given: Any) -> None:
    before = copy.deepcopy(given)
    if "error" in expected:
        with pytest.raises(ValueError, match=MESSAGES[expected["error"]["kind"]]):
            function(given)
    else:
        result = function(given)
        assert list(result) == expected["ok"] if isinstance(result, tuple) else result == expected["ok"]
    assert given == before


def expected_items(case: dict[str, Any], departures: dict[str, Any]) -> dict[str, Any]:
    """The output items of a payload, by rule where it is a message whose content is one text."""
    rule = departures["anthropic_text_content_is_one_block"]
    content = case["payload"].get("content")
    if not isinstance(content, str) or any(case["payload"].get(name) != rule["where"][name] for name in rule["where"]):
        return case["output_items"]
    return {"ok": [{"type": "message", "role": "assistant", "content": [{"type": "text", "text": content}]}]}


def test_extract(payload: dict[str, Any]) -> None:
    check(payload["extract"], extract_token_fields, payload["payload"])
    if payload["extract"].get("ok"):
        assert tuple(extract_token_fields(payload["payload"]) or ()) == TOKEN_FIELDS


def test_output_items(payload: dict[str, Any], departures: dict[str, Any]) -> None:
    check(expected_items(payload, departures), response_to_output_items, payload["payload"])


def test_strip_of_output_items(payload: dict[str, Any], departures: dict[str, Any]) -> None:
    expected = payload["strip_of_output_items"]
    items = expected_items(payload, departures)
    if items is not payload["output_items"]:
        expected = {"ok": [items["ok"], None]}
    check(expected, strip_token_fields, response_to_output_items(payload["payload"]))


def test_arrays_are_carried_like_lists(payload: dict[str, Any]) -> None:
    as_arrays = _with_arrays(payload["payload"])
    if "error" in payload["extract"]:
        with pytest.raises(ValueError, match=MESSAGES[payload["extract"]["error"]["kind"]]):
            extract_token_fields(as_arrays)
        return
    fields, expected = extract_token_fields(as_arrays), payload["extract"]["ok"]
    assert (fields is None) == (expected is None)
    if fields is not None:
        for name in TOKEN_FIELDS[:3]:
            assert isinstance(fields[name], np.ndarray)
            assert fields[name].tolist() == expected[name]


def _with_arrays(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_arrays(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: np.array(member) if name in TOKEN_FIELDS[:3] and isinstance(member, list) else _with_arrays(member)
        for name, member in value.items()
    }


def test_strip(strip: dict[str, Any]) -> None:
    check(strip, strip_token_fields, strip["items"])


def test_a_choice_that_is_no_object_is_skipped(uncontained: dict[str, Any], departures: dict[str, Any]) -> None:
    assert uncontained["peer_error_class"] in departures["odd_choices_are_skipped"]["peer_error_classes"]
    assert extract_token_fields(uncontained["payload"]) is None
    assert response_to_output_items(uncontained["payload"]) == []
