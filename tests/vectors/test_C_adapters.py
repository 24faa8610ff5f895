"""What adapters take out of engines' answers, from lists and from arrays, strictly and as the peer converts."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture.adapters.megatron import MegatronCaptureAdapter
from gym_ray.token_id_capture.adapters.vllm import VLLMCaptureAdapter

FILE = "C_adapters.json"
IDS = ("prompt_token_ids", "generation_token_ids", "generated_token_ids")
LOG_PROBS = ("generation_log_probs", "generated_log_probs")
ID_TEXT = re.compile(r"(token_id:)?[0-9]+", re.ASCII)


def adapter_of(name: str, *, strict: bool = True) -> Any:
    return {"vllm": lambda: VLLMCaptureAdapter(strict=strict), "megatron": MegatronCaptureAdapter}[name]()


def as_arrays(value: Any) -> Any:
    """Replace lists of exact integers and floats under the names of tokens by arrays."""
    if isinstance(value, list):
        return [as_arrays(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: np.array(item) if key in IDS + LOG_PROBS and uniform(item) else as_arrays(item)
        for key, item in value.items()
    }


def uniform(values: Any) -> bool:
    return isinstance(values, list) and {type(value) for value in values} in ({int}, {float})


def listed(value: Any) -> Any:
    if isinstance(value, tuple):
        return [listed(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def converts(value: Any, name: str = "") -> bool:
    """Whether a payload holds something that the peer makes an id or a log probability of, and that is none."""
    if isinstance(value, dict):
        return any(converts(item, key) for key, item in value.items())
    if name == "logprob":
        return not is_number(value)
    if name == "token":
        return not is_id(value)
    if name in IDS:
        return isinstance(value, str) or (isinstance(value, list) and not all(map(is_id, value)))
    if name in LOG_PROBS:
        return isinstance(value, list) and not all(map(is_number, value))
    return isinstance(value, list) and any(converts(item) for item in value)


def is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def is_id(value: Any) -> bool:
    return type(value) is int or (isinstance(value, str) and bool(ID_TEXT.fullmatch(value)))


def check(case: dict[str, Any], adapter: Any, payload: Any) -> None:
    method = getattr(adapter, case["method"])
    if "error" in case:
        with pytest.raises(getattr(builtins, case["error"])):
            method(payload)
    else:
        assert listed(method(payload)) == case["ok"]


@pytest.mark.parametrize("form", [lambda value: value, as_arrays], ids=["lists", "arrays"])
def test_extraction(
    case: dict[str, Any], form: Callable[[Any], Any], plain: Callable[[Any], Any], departures: dict[str, Any]
) -> None:
    payload = form(plain(case["payload"]))
    if "as_object" in payload:
        payload = SimpleNamespace(**payload["as_object"])
    if case["adapter"] == "vllm" and "ok" in case and converts(case["payload"]):
        rule = departures["ids_and_log_probs_are_not_converted"]
        assert rule["file"] == FILE
        check(case, adapter_of("vllm", strict=False), payload)
        with pytest.raises((TypeError, ValueError), match=r"index [0-9]+: |is needed"):
            getattr(adapter_of("vllm"), case["method"])(payload)
        return
    check(case, adapter_of(case["adapter"]), payload)
    if case["adapter"] == "vllm":
        check(case, adapter_of("vllm", strict=False), payload)


test_extraction.group = "extract"


@pytest.mark.parametrize("form", [list, np.array], ids=["lists", "arrays"])
def test_prefix(case: dict[str, Any], form: Callable[[Any], Any]) -> None:
    request, prefix = dict(case["request"]), form(case["prefix"])
    entered = adapter_of(case["id"].split("/")[0]).enter_prefix(request, prefix)
    assert (entered is request) is case["returns_same_object"]
    assert entered == case["ok"]
    assert (entered["required_prefix_token_ids"] is not prefix) is case["copies_prefix"]
    prefix[0] = 77
    assert entered == case["ok"]


test_prefix.group = "enter_prefix"
