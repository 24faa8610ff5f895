from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import GymRayError
from gym_ray.model_call_capture.records import read_available_model_call_records, read_model_call_records
from gym_ray.model_call_capture.store import CaptureStore

ROLLOUT = "0-0"


def departs(departures: dict[str, Any], case: dict[str, Any]) -> bool:
    rule = departures.get("strict_read_refuses_non_objects", {})
    return case["id"] in rule.get("ids", [])


def check_or_raise(expected: dict[str, Any], key: str, found: Any) -> None:
    if "error" in expected:
        with pytest.raises(GymRayError):
            found()
    else:
        assert found() == expected[key]


def run_read(case: dict[str, Any], root: Path, departures: dict[str, Any]) -> None:
    store, expected = CaptureStore(root), case["expected"]
    if case["file_content"] is not None:
        root.mkdir(exist_ok=True)
        store.path_for(ROLLOUT).write_bytes(case["file_content"].encode("utf-8", "surrogateescape"))
    strict = {"error": True} if departs(departures, case) else expected["read"]
    check_or_raise(strict, "exchanges", lambda: store.read(ROLLOUT))
    available, invalid = store.read_available(ROLLOUT)
    assert [list(pair) for pair in available] == expected["read_available"]["exchanges"]
    assert invalid == expected["read_available"]["invalid_count"]
    records, invalid = read_available_model_call_records(store, ROLLOUT)
    assert [record.call_index for record in records] == expected["read_available_records"]["call_index"]
    assert invalid == expected["read_available_records"]["invalid_count"]
    check_or_raise(
        expected["read_records"],
        "call_index",
        lambda: [record.call_index for record in read_model_call_records(store, ROLLOUT)],
    )


def token_value(value: Any) -> Any:
    if value == "<NaN>":
        return math.nan
    if isinstance(value, str) and value.startswith("<Path "):
        return Path(value[len("<Path ") : -1])
    return value


def run_append(case: dict[str, Any], root: Path) -> None:
    store = CaptureStore(root)
    for exchange in case["appends"]:
        store.record(ROLLOUT, {key: token_value(value) for key, value in exchange.items()})
    assert store.path_for(ROLLOUT).read_text("utf-8") == case["expected"]["file_content"]


def run_file_names(case: dict[str, Any], root: Path) -> None:
    store, expected = CaptureStore(root), case["expected"]
    if "error" in expected:
        for path_of in (store.path_for, store.incomplete_path_for):
            with pytest.raises(ValueError) as error:  # noqa: PT011 - the mentions are checked below
                path_of(case["rollout_id"])
            assert all(mention in str(error.value) for mention in expected["mentions"])
        return
    assert store.path_for(case["rollout_id"]).name == expected["capture"]
    assert store.incomplete_path_for(case["rollout_id"]).name == expected["incomplete"]


def test_vector(case: dict[str, Any], tmp_path: Path, departures: dict[str, Any]) -> None:
    root = tmp_path / "captures"
    if case["kind"] == "read":
        run_read(case, root, departures)
    elif case["kind"] == "append_many":
        run_append(case, root)
    else:
        assert case["kind"] == "file_names"
        run_file_names(case, root)
