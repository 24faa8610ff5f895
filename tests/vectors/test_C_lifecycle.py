"""Calls from their admission to their coordinates: from lists, from arrays, and through the wrapper for event loops."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gym_ray import errors
from gym_ray.token_id_capture.adapters.vllm import VLLMCaptureAdapter
from gym_ray.token_id_capture.staging import (
    ActiveCall,
    AsyncRolloutTokenCapture,
    CaptureAdmission,
    CaptureHost,
    CommitCoords,
    RolloutTokenCapture,
    StageResult,
    default_staging_key,
    install_capture,
)

FILE = "C_lifecycle.json"
ERRORS = {"CaptureError": errors.CaptureError, "TypeError": TypeError}
ERRORS["StreamingUnsupportedError"] = errors.StreamingUnsupportedError
TOKENS = ("prompt_token_ids", "generated_token_ids", "generated_logprobs", "prefix_token_ids")
FORMS = ["lists", "arrays", "event loop"]


class Sink:
    """What the vectors call a sink, by its kind; remembers what it was given."""

    def __init__(self, kind: str) -> None:
        self.calls: list[dict[str, Any]] = []
        self.records: list[Any] = []
        self.attachments: list[Any] = []
        answer = {"own_key": self._own_key, "reject": self._reject, "raises": self._raise}
        answer |= {"returns_none": lambda record: None, "returns_dict": lambda record: {"ok": True}}
        self._answer = answer.get(kind, self._staged)
        self.stage = {"legacy": self._legacy, "kwargs": self._any}.get(kind, self._modern)

    def _modern(self, record: Any, *, attachments: Any = None) -> Any:
        return self._any(record) if attachments is None else self._any(record, attachments=attachments)

    def _legacy(self, record: Any) -> Any:
        return self._any(record)

    def _any(self, record: Any, **kwargs: Any) -> Any:
        self.calls.append({"kwargs": sorted(kwargs), "record_digest": record.digest})
        self.records.append(record)
        self.attachments.append(kwargs.get("attachments"))
        return self._answer(record)

    def _staged(self, record: Any) -> StageResult:
        return StageResult(ok=True, staging_key=default_staging_key(record.rollout_id, record.model_call_id))

    def _own_key(self, record: Any) -> StageResult:
        return StageResult(ok=True, staging_key=self.own_key)

    def _reject(self, record: Any) -> StageResult:
        return StageResult(ok=False, error="full")

    def _raise(self, record: Any) -> StageResult:
        raise OSError("disk")

    own_key = "custom-key"


def formed(values: dict[str, Any], form: str) -> dict[str, Any]:
    """Return the arguments with arrays for lists of tokens, where the form asks for them."""
    if form == "lists":
        return values
    return {name: array(name, value) if name in TOKENS else value for name, value in values.items()}


def array(name: str, values: Any) -> Any:
    if not isinstance(values, list):
        return values
    if not values:
        return np.array([], np.float64 if name == "generated_logprobs" else np.int64)
    uniform = len({type(value) for value in values}) == 1
    return np.array(values) if uniform else np.array(values, object)


def admission_of(given: dict[str, Any], form: str, departures: dict[str, Any]) -> CaptureAdmission:
    """Return the admission; one that only the peer takes is refused, and made without its checks."""
    inline = given.get("required_prefix_token_ids", [])
    given = {**given, "required_prefix_token_ids": inline if form == "lists" else np.array(inline, np.int64)}
    if not 0 < len(inline) < given.get("prev_len", 0):
        return CaptureAdmission(**given)
    assert departures["a_short_prefix_is_not_admitted"]["file"] == FILE
    with pytest.raises(ValidationError, match="C324"):
        CaptureAdmission(**given)
    whole = CaptureAdmission(**{**given, "required_prefix_token_ids": []})
    return whole.model_copy(update={"required_prefix_token_ids": whole_column(inline)})


def whole_column(values: list[int]) -> Any:
    admission = {"rollout_id": "r", "model_call_id": "c", "parent_call_id": "p", "mode": "token_in"}
    admission |= {"prev_len": len(values), "required_prefix_token_ids": values, "parent_chain_hash": "a" * 64}
    return CaptureAdmission(**admission).required_prefix_token_ids


def dumped(coords: CommitCoords) -> dict[str, Any]:
    return coords.model_dump(mode="json")


@pytest.mark.parametrize("form", FORMS)
def test_begin(case: dict[str, Any], form: str, plain: Callable[[Any], Any], departures: dict[str, Any]) -> None:
    asked = Counter[str]()

    def version() -> Any:
        asked["version"] += 1
        return case["provider"]

    capture = RolloutTokenCapture(Sink("modern"), version)
    begin = AsyncRolloutTokenCapture(capture).begin_call if form == "event loop" else capture.begin_call
    kwargs = formed(plain(case["kwargs"]), form)
    admission = None if case["admission"] is None else admission_of(case["admission"], form, departures)
    if "error" in case:
        with pytest.raises(ERRORS[case["error"]]):
            begin(admission, **kwargs)
        return
    call = begin(admission, **kwargs)
    found = {"weight_version": call.weight_version, "completed": call.completed}
    assert found | {"prefix_token_ids": call.prefix_token_ids.tolist()} == case["ok"]
    assert (call.rollout_id, call.model_call_id) == (admission.rollout_id, admission.model_call_id)
    assert asked["version"] == ("weight_version" not in kwargs)


test_begin.group = "begin"


def completed(capture: RolloutTokenCapture, call: ActiveCall, kwargs: dict[str, Any], form: str) -> CommitCoords:
    if form != "event loop":
        return capture.complete_call(call, **kwargs)

    async def complete() -> CommitCoords:
        wrapped = AsyncRolloutTokenCapture(capture)
        try:
            return await wrapped.complete_call(call, **kwargs)
        finally:
            assert await wrapped.aclose() == 0

    return asyncio.run(complete())


def check_calls(sink: Sink, case: dict[str, Any], given: Any) -> None:
    assert len(sink.calls) == case["sink_call_count"] == len(case["sink_calls"])
    for found, attachments, expected in zip(sink.calls, sink.attachments, case["sink_calls"], strict=True):
        same = (attachments is given) if "attachments" in found["kwargs"] else None
        said = {**found, "attachments_is_same_object": same}
        assert {name: said[name] for name in expected} == expected
        assert same is not False


@pytest.mark.parametrize("form", FORMS)
def test_complete(case: dict[str, Any], form: str, plain: Callable[[Any], Any], departures: dict[str, Any]) -> None:
    sink = Sink(case["sink"])
    if case.get("ok", {}).get("staging_key"):
        sink.own_key = case["ok"]["staging_key"]
    capture = RolloutTokenCapture(sink, lambda: 5)
    admission = admission_of(case["admission"], form, departures)
    call = capture.begin_call(admission, **formed(plain(case["begin_kwargs"]), form))
    kwargs = formed(plain(case["kwargs"]), form)
    coords = completed(capture, call, kwargs, form)
    if "error" in case:
        rule = departures["what_cannot_be_built_is_a_failed_capture"]
        assert rule["file"] == FILE
        assert coords.disposition == rule["expected"]["disposition"]
    else:
        assert dumped(coords) == case["ok"]
    check_calls(sink, case, kwargs.get("attachments"))
    assert sum(capture.failures.values()) == (coords.disposition == "capture_failed")
    with pytest.raises(ERRORS[case["second_complete"]]):
        completed(capture, call, kwargs, form)
    assert len(sink.calls) == case["sink_call_count"]


test_complete.group = "complete"


@pytest.mark.parametrize("form", FORMS)
def test_record(case: dict[str, Any], form: str, plain: Callable[[Any], Any], departures: dict[str, Any]) -> None:
    sink = Sink("modern")
    capture = RolloutTokenCapture(sink, lambda: 5)
    admission = admission_of(case["admission"], form, departures)
    call = capture.begin_call(admission, **formed(plain(case["begin_kwargs"]), form))
    coords = completed(capture, call, formed(plain(case["kwargs"]), form), form)
    assert dumped(coords) == case["coords"]
    (record,) = sink.records
    assert record.model_dump(mode="json") == case["record"]
    assert list(record.model_dump()) == list(case["record"])


test_record.group = "records"

GOOD = {"prompt_token_ids": [10, 11], "choices": [{"message": {"generation_token_ids": [12]}}]}
GOOD["choices"][0]["message"]["generation_log_probs"] = [-0.5]
BAD = {"choices": []}
WHOLE = {"prompt_token_ids": [10, 11], "generated_token_ids": [12], "generated_logprobs": [-0.5]}

Step = Callable[[RolloutTokenCapture, ActiveCall], CommitCoords]
STEPS: dict[str, Step] = {
    "good": lambda capture, call: capture.complete_call_from_response(call, GOOD),
    "media": lambda capture, call: capture.complete_call_from_response(call, GOOD, attachments={"i": object()}),
    "bad": lambda capture, call: capture.complete_call_from_response(call, BAD),
    "complete": lambda capture, call: capture.complete_call(call, **WHOLE),
    "fail": lambda capture, call: capture.fail_call(call, reason="aborted"),
}
SCENARIOS = {
    "response_ok": ["good"],
    "response_attachments": ["media"],
    "extraction_failure_consumes_call": ["bad", "good"],
    "bad_payload_after_completion_is_lifecycle_error": ["complete", "bad"],
    "no_adapter_does_not_consume": ["good", "complete"],
    "complete_then_fail": ["complete", "fail"],
    "fail_then_complete": ["fail", "complete"],
    "fail_twice": ["fail", "fail"],
    "complete_twice": ["complete", "complete"],
}


def taken(step: Callable[[], CommitCoords]) -> str:
    try:
        return step().disposition
    except errors.CaptureError:
        return "CaptureError"


def test_scenario(case: dict[str, Any]) -> None:
    name = case["id"].removeprefix("scenario/")
    sink = Sink("modern")
    capture = RolloutTokenCapture(sink, lambda: 5, None if name.startswith("no_adapter") else VLLMCaptureAdapter())
    call = capture.begin_call(CaptureAdmission(rollout_id="r1", model_call_id="c1", mode="text"))
    if "winners" in case:
        check_race(case, capture, call)
        assert len(sink.calls) == case["sink_calls"]
        return
    steps = [taken(lambda step=step: STEPS[step](capture, call)) for step in SCENARIOS[name]]
    assert steps == case["steps"]
    assert [one["kwargs"] for one in sink.calls] == case["sink_kwargs"]
    assert call.completed is case["completed_at_end"]


test_scenario.group = "scenarios"


def check_race(case: dict[str, Any], capture: RolloutTokenCapture, call: ActiveCall) -> None:
    racers = case["winners"] + case["capture_errors"]
    line, results = threading.Barrier(racers), Counter[str]()

    def race() -> None:
        line.wait(10)
        results[taken(lambda: capture.complete_call(call, **WHOLE))] += 1

    threads = [threading.Thread(target=race) for _ in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"staged": case["winners"], "CaptureError": case["capture_errors"]}


def test_install(case: dict[str, Any]) -> None:
    host: Any = CaptureHost()
    parts: dict[str, Any] = {"sink": Sink("modern"), "weight_version_fn": lambda: 1}
    assert host.token_capture is None
    match case["id"].removeprefix("install/"):
        case "sink_without_stage":
            parts["sink"] = object()
        case "weight_fn_not_callable":
            parts["weight_version_fn"] = 5
        case "host_without_hook":
            host = object()
    if "error" in case:
        with pytest.raises(ERRORS[case["error"]]):
            install_capture(host, **parts)
        return
    capture = install_capture(host, **parts)
    assert type(capture).__name__ == case["ok"]
    assert host.token_capture is capture


test_install.group = "install"
