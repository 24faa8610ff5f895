"""Finalisation, retirement and the mask limit against their vectors. The records are those that the results show."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import MaskLimitExceededError
from gym_ray.testing.token_source import FakeTokenSource, call_entry
from gym_ray.token_id_capture.delivery import (
    capture_build_can_retire,
    finalize_rollout_token_capture,
    retire_rollout_token_capture,
)
from gym_ray.token_id_capture.mask_limit import MaskLimit
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry

RETIRED_ID = "3-1"  # the vectors retire under the id without its attempt, whatever was frozen
ERROR_KINDS = {
    "malformed rollout id": "malformed_rollout_id",
    "no capture key": "no_capture_key",
    "no_token_records": "no_token_records",
    "freeze_failed: ": "",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    section = getattr(metafunc.function, "section", None)
    if section is None:
        return
    document = json.loads((Path(metafunc.config.getoption("--vectors")) / "B_delivery.json").read_text("utf-8"))
    cases = document[section]
    metafunc.parametrize("vector", cases, ids=[case.get("name", str(i)) for i, case in enumerate(cases)])


def of_section(name: str) -> Callable[[Any], Any]:
    def marked(function: Any) -> Any:
        function.section = name
        return function

    return marked


def said(call_id: str, text: str, prompt: list[int], generation: list[int], parent: TokenEntry | None) -> TokenEntry:
    items = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]
    number = call_id.removeprefix("c")
    return call_entry(
        call_id,
        prompt,
        generation,
        parent,
        output_items=items,
        response_id=f"resp_{number}",
        created_at=float(number),
    )


def source_of(name: str, form: str) -> FakeTokenSource:
    c1 = said("c1", "A", [1, 2], [3, 4], None)
    c2 = said("c2", "B", [5], [6], c1)
    other = said("c3", "C", [7], [8], None)
    entries = {"nothing_recorded": [], "two_roots_no_end": [c1, other], "two_roots_named_end": [c1, c2, other]}
    return FakeTokenSource(
        [PackedEntry.of_entry(entry) if form == "arrays" else entry for entry in entries.get(name, [c1, c2])],
        incomplete=name.startswith("incomplete"),
        failure=RuntimeError("transport down") if name.endswith("freeze_fails") else None,
    )


def with_kind(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return metrics whose error is the vectors' own label."""
    metrics = dict(metrics)
    error = metrics.pop("error", None)
    if error is not None:
        (start,) = (start for start in ERROR_KINDS if error.startswith(start))
        metrics["error_kind"] = ERROR_KINDS[start] or error.removeprefix(start)
    return metrics


def comparable(build: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a build as the vectors spell it; ``mask_reasons`` is ours."""
    if build is None:
        return None
    shown = {name: value for name, value in build.items() if name not in ("rebuilt_response", "error", "mask_reasons")}
    if "metrics" in shown:
        shown["metrics"] = with_kind(shown["metrics"])
    return shown | {"has_response": build["rebuilt_response"] is not None, "has_error": "error" in build}


def respects_the_first(vector: dict[str, Any]) -> bool:
    """Whether the record was masked by an earlier finalisation, as the rule of W29 has it."""
    before = vector["result_before"]
    return bool(before.get("mask_sample")) and "_ng_token_capture" in before


@of_section("finalize")
@pytest.mark.parametrize("form", ["lists", "arrays"])
async def test_finalize(vector: dict[str, Any], form: str, departures: dict[str, Any]) -> None:
    expected = {name: vector[name] for name in ("built", "froze", "retired", "dropped")}
    if respects_the_first(vector):
        rule = departures["a_second_finalisation_respects_the_first"]["expected"]
        expected |= {"built": expected["built"] | rule["built"], "retired": rule["retired"], "dropped": rule["dropped"]}
    result = copy.deepcopy(vector["result_before"])
    source = None if vector["name"] == "no_source" else source_of(vector["name"], form)
    build = await finalize_rollout_token_capture(result, source)
    if "_ng_token_capture" in result and "_ng_token_capture" not in vector["result_before"]:
        result["_ng_token_capture"] = with_kind(result["_ng_token_capture"])
    assert result == vector["result_after"]
    retired = capture_build_can_retire(build) and await retire_rollout_token_capture(RETIRED_ID, source, build)
    assert expected == {
        "built": comparable(build),
        "froze": [] if source is None else source.froze,
        "retired": retired,
        "dropped": [] if source is None else [list(drop) for drop in source.dropped],
    }


@of_section("can_retire")
def test_can_retire(vector: dict[str, Any]) -> None:
    assert capture_build_can_retire(vector["built"]) is vector["can_retire"]


@of_section("mask_limit")
def test_mask_limit(vector: dict[str, Any]) -> None:
    limit = MaskLimit(vector["max_mask_fraction"], vector["mask_fraction_min_samples"])
    aborted = None
    for index, sign in enumerate(vector["sequence"]):
        try:
            limit.note(sign == "m", ["capture_incomplete"])
        except MaskLimitExceededError:
            aborted = index
            break
    assert aborted == vector["abort_after_index"]
