"""Calls that are completed: what the sink is given, what is acknowledged, and what a failure costs."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gym_ray.errors import CaptureError
from gym_ray.testing.staged_chains import KeepingSink, staged_call
from gym_ray.token_id_capture.adapters import VLLMCaptureAdapter
from gym_ray.token_id_capture.staging import (
    ActiveCall,
    CaptureAdmission,
    CaptureHost,
    CommitCoords,
    MemoryStaging,
    RolloutTokenCapture,
    StagedCallRecord,
    StageResult,
    compute_chain_hash,
    compute_prefix_hash,
    install_capture,
)

ROOT = CaptureAdmission(rollout_id="r0", model_call_id="c0", mode="text")
TOKENS: dict[str, Any] = {"prompt_token_ids": [1, 2], "generated_token_ids": [3], "generated_logprobs": [-0.5]}


def child(prefix: int) -> CaptureAdmission:
    return CaptureAdmission(
        rollout_id="r0",
        model_call_id="c1",
        parent_call_id="c0",
        prev_len=prefix,
        mode="token_in",
        staging_chain=["r0/c0"],
        parent_chain_hash="a" * 64,
    )


class Sink:
    """Does what a function does; takes what it is given."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.calls = answer, 0

    def stage(self, record: StagedCallRecord, **kwargs: Any) -> Any:
        self.calls += 1
        return self.answer(record, **kwargs)


class Unreadable(ValueError):
    """Cannot even say what it is."""

    def __str__(self) -> str:
        raise ZeroDivisionError


def raising(error: BaseException) -> Sink:
    def answer(record: StagedCallRecord, **_: Any) -> Any:
        raise error

    return Sink(answer)


def complete(sink: Any, **changes: Any) -> tuple[CommitCoords, RolloutTokenCapture, ActiveCall]:
    capture = RolloutTokenCapture(sink, lambda: 1)
    call = capture.begin_call(ROOT)
    return capture.complete_call(call, **{**TOKENS, **changes}), capture, call


def only(capture: RolloutTokenCapture, kind: str) -> bool:
    return {name: count for name, count in capture.failures.items() if count} == {kind: 1}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_process_is_not_held_up(kind: type[BaseException]) -> None:
    capture = RolloutTokenCapture(raising(kind()), lambda: 1)
    call = capture.begin_call(ROOT)
    with pytest.raises(kind):
        capture.complete_call(call, **TOKENS)
    assert call.completed
    with pytest.raises(CaptureError, match="call c0 was completed before"):
        capture.fail_call(call, reason="aborted")


@pytest.mark.parametrize(
    ("sink", "kind", "reason"),
    [
        (Sink(lambda record, **_: StageResult(ok=False, error="quota")), "sink_rejected", "quota"),
        (raising(OSError("disk full")), "sink_raised", "OSError: disk full"),
        (Sink(lambda record, **_: None), "sink_answer", "NoneType"),
        (Sink(lambda record, **_: {"ok": True, "staging_key": "k"}), "sink_answer", "dict"),
        (Sink(lambda record, **_: StageResult.model_construct(ok=True, staging_key="")), "sink_answer", "no key"),
        (Sink(lambda record, **_: StageResult.model_construct(ok=True, staging_key=None)), "sink_answer", "None"),
        (Sink(lambda record, **_: StageResult.model_construct(ok=1, error=None)), "sink_rejected", "no reason"),
        (Sink(lambda record, **_: StageResult.model_construct(ok=True, staging_key="\ud800")), "sink_answer", "no key"),
        (raising(Unreadable()), "sink_raised", "Unreadable: its text cannot be read: ZeroDivisionError"),
    ],
)
def test_a_sink_that_does_not_say_yes_makes_a_failed_capture(
    sink: Sink, kind: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    coords, capture, _ = complete(sink)
    assert (coords.disposition, coords.staging_key, coords.cum_len) == ("capture_failed", None, 0)
    assert only(capture, kind)
    assert f"rollout r0: call c0 is not captured ({kind}): " in caplog.text
    assert reason in caplog.text
    assert sink.calls == 1


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({"prompt_token_ids": [1, -2]}, "invalid_tokens", "-2 at index 1"),
        ({"prompt_token_ids": [1, 2**64]}, "invalid_tokens", "at index 1"),
        ({"prompt_token_ids": (1, 2)}, "invalid_tokens", "tuple"),
        ({"prompt_token_ids": np.array([1.0, 2.0])}, "invalid_tokens", "float64"),
        ({"prompt_token_ids": np.array([1, True], object)}, "invalid_tokens", "object"),
        ({"prompt_token_ids": np.array([[1, 2]])}, "invalid_tokens", "shape"),
        ({"generated_token_ids": [3.0]}, "invalid_tokens", "generated_token_ids: 3.0 at index 0"),
        ({"generated_token_ids": "3"}, "invalid_tokens", "str"),
        ({"generated_logprobs": [-0.5, -0.5]}, "invalid_tokens", "1 generated tokens have 2"),
        ({"generated_logprobs": [float("inf")]}, "invalid_tokens", "inf at index 0"),
        ({"generated_logprobs": np.array([np.nan])}, "invalid_tokens", "nan at index 0"),
        ({"generated_logprobs": np.array([True])}, "invalid_tokens", "bool"),
        ({"generated_logprobs": np.array([-1])}, "invalid_tokens", "int64"),
        ({"generated_logprobs": None}, "invalid_tokens", "NoneType"),
        ({"prompt_token_ids": [], "generated_token_ids": [], "generated_logprobs": []}, "invalid_tokens", "no token"),
        ({"extras": [1]}, "invalid_extras", "list"),
        ({"extras": {"a": (1,)}}, "invalid_extras", "tuple"),
        ({"extras": {"media": {"pixels": 4}}}, "invalid_extras", "an older format"),
    ],
)
def test_what_cannot_be_staged_never_reaches_the_sink(
    changes: dict[str, Any], kind: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink = KeepingSink()
    coords, capture, _ = complete(sink, **changes)
    assert coords.disposition == "capture_failed"
    assert only(capture, kind)
    assert reason in caplog.text
    assert sink.records == []


class Hostile(Mapping[str, Any]):
    """Extras that fail in a way nobody foresees."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("out of order")

    def __iter__(self) -> Any:
        return iter(["a"])

    def __len__(self) -> int:
        return 1

    def __contains__(self, key: object) -> bool:
        return False


def test_an_error_that_nobody_foresaw_costs_the_capture_alone(caplog: pytest.LogCaptureFixture) -> None:
    coords, capture, call = complete(KeepingSink(), extras=Hostile())
    assert coords.disposition == "capture_failed"
    assert only(capture, "unexpected")
    assert call.completed
    assert "RuntimeError: out of order" in caplog.text


def test_a_text_only_sink_stages_text_and_fails_media_once() -> None:
    class Legacy(KeepingSink):
        calls = 0

        def stage(self, record: StagedCallRecord) -> StageResult:  # type: ignore[override]
            self.calls += 1
            return super().stage(record)

    sink = Legacy()
    assert complete(sink)[0].disposition == "staged"
    coords, capture, _ = complete(sink, attachments={"pixels": object()})
    assert coords.disposition == "capture_failed"
    assert only(capture, "sink_raised")
    assert sink.calls == 1


@pytest.mark.parametrize("attachments", [{}, {"pixels": object()}, {"a": [np.zeros(2), "x"]}])
def test_the_sink_gets_the_very_mapping_that_was_given(attachments: dict[str, Any]) -> None:
    sink = KeepingSink()
    with_media, _, _ = complete(sink, attachments=attachments)
    assert sink.attachments[0] is attachments
    assert with_media == complete(KeepingSink())[0]


class OldExtension(KeepingSink):
    def stage(self, record: StagedCallRecord) -> StageResult:  # type: ignore[override]
        return super().stage(record)

    def stage_with_attachments(self, record: StagedCallRecord, attachments: Any) -> StageResult:
        raise AssertionError("the older extension is never used")


def test_the_older_extension_for_media_is_refused_by_name(caplog: pytest.LogCaptureFixture) -> None:
    sink = OldExtension()
    coords, capture, _ = complete(sink, attachments={"pixels": 1})
    assert coords.disposition == "capture_failed"
    assert only(capture, "sink_raised")
    assert "stage_with_attachments, an older extension" in caplog.text
    assert sink.records == []
    assert complete(sink)[0].disposition == "staged"


def test_a_sink_that_has_both_ways_gets_the_keyword() -> None:
    class Both(OldExtension):
        def stage(self, record: StagedCallRecord, **kwargs: Any) -> StageResult:  # type: ignore[override]
            assert kwargs == {"attachments": {"pixels": 1}}
            return super().stage(record)

    assert complete(Both(), attachments={"pixels": 1})[0].disposition == "staged"


def test_a_prompt_that_departs_from_its_prefix_is_not_staged(caplog: pytest.LogCaptureFixture) -> None:
    for prompt, where in (([1, 2, 9, 4], "differs from index 2 on"), ([1, 2], "ends at index 2")):
        capture = RolloutTokenCapture(KeepingSink(), lambda: 1)
        call = capture.begin_call(child(3), prefix_token_ids=np.array([1, 2, 3]))
        coords = capture.complete_call(call, **{**TOKENS, "prompt_token_ids": prompt})
        assert (coords.disposition, coords.prev_len, coords.cum_len) == ("capture_failed", 3, 3)
        assert only(capture, "prefix_mismatch")
        assert where in caplog.text


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint32, np.uint64])
def test_a_long_prefix_stays_an_array(dtype: Any) -> None:
    prefix = np.arange(100_000, dtype=dtype)
    prompt, sink = np.concatenate((prefix, np.array([7, 8], dtype))), KeepingSink()
    capture = RolloutTokenCapture(sink, lambda: 1)
    tracemalloc.start()
    call = capture.begin_call(child(prefix.size), prefix_token_ids=prefix)
    coords = capture.complete_call(
        call, prompt_token_ids=prompt, generated_token_ids=np.array([9], dtype), generated_logprobs=np.array([-0.5])
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * prefix.size  # Python integers alone would take 36 bytes each
    (record,) = sink.records
    assert record.token_ids_delta == [7, 8, 9]
    assert record.token_ids_delta.array.base is None or record.token_ids_delta.array.base.size == 3
    assert coords.chain_hash == compute_chain_hash("a" * 64, [7, 8, 9])
    assert coords.cumulative_hash == compute_prefix_hash([*range(100_000), 7, 8, 9])


def test_log_probs_of_a_list_stay_as_they_came_and_those_of_an_array_become_float32() -> None:
    sink = KeepingSink()
    listed, _, _ = complete(sink, generated_logprobs=[-0.1])
    arrayed, _, _ = complete(sink, generated_logprobs=np.array([-0.1]))
    assert listed == arrayed
    assert [record.generation_log_probs_delta.array.dtype.name for record in sink.records] == ["float64", "float32"]
    assert sink.records[0].generation_log_probs_delta == [0.0, 0.0, -0.1]
    for record in sink.records:
        again = StagedCallRecord.model_validate(record.model_dump())
        assert again.digest == record.compute_digest()


def test_the_weight_version_is_asked_for_once_at_admission() -> None:
    versions = iter([3])
    capture = RolloutTokenCapture(KeepingSink(), lambda: next(versions))
    call = capture.begin_call(ROOT)
    assert capture.complete_call(call, **TOKENS).weight_version == 3


def test_a_caller_that_gives_up_is_told_so_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    capture = RolloutTokenCapture(KeepingSink(), lambda: 4)
    coords = capture.fail_call(capture.begin_call(child(2), prefix_token_ids=[1, 2]), reason="client went away")
    assert (coords.disposition, coords.weight_version, coords.cum_len) == ("capture_failed", 4, 2)
    assert only(capture, "failed_by_caller")
    assert "client went away" in caplog.text


def test_a_call_that_never_began_can_be_refused(caplog: pytest.LogCaptureFixture) -> None:
    capture = RolloutTokenCapture(KeepingSink(), lambda: 4)
    coords = capture.refuse(child(5), reason="its prefix is not proved")
    assert (coords.parent_call_id, coords.disposition, coords.cum_len) == ("c0", "capture_failed", 5)
    assert only(capture, "failed_by_caller")
    assert "its prefix is not proved" in caplog.text


def answer(**message: Any) -> dict[str, Any]:
    return {"prompt_token_ids": [1, 2], "choices": [{"message": message}]}


GOOD = answer(generation_token_ids=[3], generation_log_probs=[-0.5])


class FailingAdapter(VLLMCaptureAdapter):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def extract_extras(self, payload: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("no"), AssertionError("no"), RecursionError("no"), LookupError("no")])
def test_an_adapter_that_raises_uses_the_call_up(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    capture = RolloutTokenCapture(KeepingSink(), lambda: 1, FailingAdapter(error))
    call = capture.begin_call(ROOT)
    assert capture.complete_call_from_response(call, GOOD).disposition == "capture_failed"
    assert only(capture, "adapter")
    assert f"{type(error).__name__}: no" in caplog.text
    with pytest.raises(CaptureError):
        capture.complete_call_from_response(call, GOOD)


def test_what_ends_a_process_passes_through_an_adapter_as_well() -> None:
    capture = RolloutTokenCapture(KeepingSink(), lambda: 1, FailingAdapter(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        capture.complete_call_from_response(capture.begin_call(ROOT), GOOD)


def test_routes_are_cut_to_the_tokens_that_a_call_stages() -> None:
    sink = KeepingSink()
    capture = RolloutTokenCapture(sink, lambda: 1, VLLMCaptureAdapter())
    routes = [[[row]] for row in range(4)]
    payload = {"prompt_token_ids": [1, 2, 5], "media_spans": [{"offset": 2, "length": 1}]}
    message = {"generation_token_ids": [6], "generation_log_probs": [-0.5], "routed_experts": routes}
    call = capture.begin_call(child(2), prefix_token_ids=[1, 2])
    coords = capture.complete_call_from_response(call, {**payload, "choices": [{"message": message}]})
    assert coords.disposition == "staged"
    assert sink.records[0].extras == {"routed_experts": [[[2]], [[3]]], "media_spans": [{"offset": 2, "length": 1}]}


def test_an_adapter_of_a_framework_needs_the_protocol_alone() -> None:
    class Adapter:
        def enter_prefix(self, request: Any, prefix_token_ids: Any) -> Any:
            return request

        def extract_prompt_ids(self, payload: Any) -> Any:
            return payload[0]

        def extract_generation(self, payload: Any) -> Any:
            return payload[1], payload[2]

        def extract_extras(self, payload: Any) -> Any:
            return {"kept": True}

    staging = MemoryStaging()
    capture = RolloutTokenCapture(staging, lambda: 1, Adapter())
    payload = (np.array([1, 2]), np.array([3]), np.array([-0.5], np.float32))
    coords = capture.complete_call_from_response(capture.begin_call(ROOT), payload)
    assert coords.digest == staging.fetch([coords.staging_key or ""])[0].digest
    assert staging.fetch_extras([coords.staging_key or ""]) == [{"kept": True}]


def test_failures_say_nothing_of_calls_that_were_staged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    coords, capture, _ = complete(KeepingSink())
    assert coords.disposition == "staged"
    assert not any(capture.failures.values())
    assert caplog.records == []
    assert coords.digest == staged_call(carried=[1, 2], generated=[3], log_probs=[-0.5]).digest


def test_why_a_call_is_not_captured_is_told_to_whoever_asks() -> None:
    told: list[tuple[CaptureAdmission, str, str]] = []
    host = CaptureHost()
    capture = install_capture(
        host,
        sink=Sink(lambda record, **_: StageResult(ok=False, error="quota")),
        weight_version_fn=lambda: 1,
        on_failure=lambda *found: told.append(found),
    )
    assert host.token_capture is capture
    capture.complete_call(capture.begin_call(ROOT), **TOKENS)
    capture.fail_call(capture.begin_call(ROOT), reason="aborted")
    capture.refuse(ROOT, reason="streamed")
    assert told == [
        (ROOT, "sink_rejected", "quota"),
        (ROOT, "failed_by_caller", "aborted"),
        (ROOT, "failed_by_caller", "streamed"),
    ]


def test_a_hook_that_raises_changes_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def hook(*_: object) -> None:
        raise ZeroDivisionError("the hook")

    capture = RolloutTokenCapture(raising(OSError("disk full")), lambda: 1, on_failure=hook)
    assert capture.complete_call(capture.begin_call(ROOT), **TOKENS).disposition == "capture_failed"
    assert only(capture, "sink_raised")
    assert "on_failure raised for call c0" in caplog.text
    assert "ZeroDivisionError: the hook" in caplog.text


def test_nobody_is_told_of_a_call_that_is_staged() -> None:
    told: list[object] = []
    capture = RolloutTokenCapture(MemoryStaging(), lambda: 1, on_failure=lambda *found: told.append(found))
    assert capture.complete_call(capture.begin_call(ROOT), **TOKENS).disposition == "staged"
    assert told == []


def test_a_hook_that_cannot_be_called_is_refused() -> None:
    hook: Any = "print"
    with pytest.raises(TypeError, match="on_failure is called for each call that is not captured; 'print' cannot"):
        install_capture(CaptureHost(), sink=MemoryStaging(), weight_version_fn=lambda: 1, on_failure=hook)


def test_a_sink_for_text_alone_says_what_to_do_about_attachments(caplog: pytest.LogCaptureFixture) -> None:
    class TextSink:
        def stage(self, record: StagedCallRecord) -> StageResult:
            raise AssertionError(record)

    coords, capture, _ = complete(TextSink(), attachments={})
    assert coords.disposition == "capture_failed"
    assert only(capture, "sink_raised")
    assert "TextSink.stage takes no attachments: give it the keyword attachments" in caplog.text
    assert "or complete the call with attachments=None" in caplog.text


def test_a_type_error_of_a_sink_that_takes_attachments_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    complete(raising(TypeError("odd")), attachments={})
    assert "TypeError: odd" in caplog.text
    assert "takes no attachments" not in caplog.text
