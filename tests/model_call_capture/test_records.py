from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gym_ray import exact_json
from gym_ray.dialects import DIALECT_BY_PATH
from gym_ray.dialects.reassembly import reassemble
from gym_ray.errors import CaptureError, RolloutIdError
from gym_ray.model_call_capture.records import (
    PAYLOAD_FIELDS,
    ModelCallRecord,
    aggregate_model_call_metrics,
    aggregate_model_call_records,
    build_record,
    read_available_model_call_records,
    read_model_call_records,
)
from gym_ray.model_call_capture.store import CaptureStore

RECORDINGS = Path(__file__).parents[1] / "recordings"
REF = {"type": "responses_api_models", "name": "policy_model"}


def exchange(**members: Any) -> dict[str, Any]:
    return {"model_call_id": "c0", "dialect": "chat", "model_ref": REF, "status_code": 200, **members}


def test_times_are_utc_and_seconds_as_json() -> None:
    record = build_record(exchange(started_at=1786032154.12, completed_at=1786032155), 0)
    assert record.started_at == datetime(2026, 8, 6, 16, 2, 34, 120000, tzinfo=UTC)
    assert record.as_json()["started_at"] == record.model_dump()["started_at"] == 1786032154.12
    assert json.loads(record.model_dump_json())["completed_at"] == 1786032155


def test_payloads_can_be_left_out() -> None:
    record = build_record(exchange(request={"n": 2**64}, response={}, response_raw="\ud83d"), 3)
    everything, light = record.as_json(), record.as_json(include_payloads=False)
    assert list(everything) == list(ModelCallRecord.model_fields)
    assert [name for name in everything if name not in PAYLOAD_FIELDS] == list(light)
    assert everything["request"] == {"n": 2**64}
    assert everything["call_index"] == 3


ZEROS = {"usage": {"input_tokens": 0, "output_tokens": 0}}


@pytest.mark.parametrize(
    ("members", "tokens"),
    [
        ({"response": ZEROS}, (0, 0, 0)),
        ({"response": ZEROS, "usage": {"prompt_tokens": 5, "completion_tokens": 3}}, (5, 3, 8)),
        ({"response": None, "usage": {"prompt_tokens": 5, "completion_tokens": 3}}, (5, 3, 8)),
        ({"response": ZEROS, "usage": None}, (None, None, None)),
        ({"response": ZEROS, "usage": "many"}, (None, None, None)),
    ],
)
def test_what_the_handler_knew_of_usage_goes_before_what_it_told(
    members: dict[str, Any], tokens: tuple[int | None, ...]
) -> None:
    record = build_record(exchange(**members), 0)
    assert (record.tokens_in, record.tokens_out, record.tokens_total) == tokens


@pytest.mark.parametrize(
    ("member", "value", "field"),
    [
        ("model_ref", {"type": "resources_servers", "name": "x"}, "model_ref"),
        ("model_ref", {"type": "responses_api_models", "name": 5}, "model_ref"),
        ("response_source", "cache", "response_source"),
        ("status_code", "200", "status_code"),
        ("started_at", "yesterday", "started_at"),
        ("started_at", 1e300, "started_at"),
        ("started_at", float("nan"), "started_at"),
        ("latency_ms", "fast", "latency_total_ms"),
        ("dialect", 5, "dialect"),
    ],
)
def test_a_value_no_record_can_hold_is_named(member: str, value: object, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        build_record(exchange(**{member: value}), 0)


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ([1], {}),
        ("[1]", {"_raw": "[1]"}),
        ('{"c":"ls"', {"_raw": '{"c":"ls"'}),
        ('{"n": 18446744073709551616}', {"n": 2**64}),
        ("\ud83d", {"_raw": "\ud83d"}),
    ],
)
def test_tool_arguments(arguments: object, parsed: dict[str, Any]) -> None:
    output = [{"type": "function_call", "call_id": "t", "name": "f", "arguments": arguments}]
    (call,) = build_record(exchange(response={"output": output}), 0).tool_calls
    assert (call.call_id, call.name, call.arguments) == ("t", "f", parsed)


def test_the_shape_decides_not_the_dialect() -> None:
    message = {"reasoning": "r", "tool_calls": [{"id": "t", "function": {"name": "f", "arguments": "{}"}}]}
    second = {"reasoning_content": "s", "reasoning": "s"}
    response = {"choices": [{"message": message, "finish_reason": "tool_calls"}, {"message": second}], "content": []}
    record = build_record(exchange(dialect="messages", response=response), 0)
    assert record.reasoning_content == "r\ns"
    assert [call.call_id for call in record.tool_calls] == ["t"]
    assert record.finish_reason == "tool_calls"


def test_empty_thinking_adds_no_line() -> None:
    content = [
        {"type": "thinking", "thinking": ""},
        {"type": "redacted_thinking", "data": "E"},
        5,
        {"type": "thinking"},
    ]
    assert build_record(exchange(response={"content": content}), 0).reasoning_content is None
    content.append({"type": "thinking", "thinking": "hm"})
    assert build_record(exchange(response={"content": content}), 0).reasoning_content == "hm"


@pytest.mark.parametrize(
    ("engine", "dialect"), [(e, d) for e in ("llama_cpp", "vllm_0_32") for d in ("messages", "responses")]
)
def test_streamed_and_plain_answers_give_the_same_record(engine: str, dialect: str) -> None:
    def record_of(name: str, *, stream: bool) -> ModelCallRecord:
        recording = json.loads((RECORDINGS / engine / f"{name}.json").read_text("utf-8"))
        body = recording["body"].encode()
        response = reassemble(DIALECT_BY_PATH[recording["path"]], body) if stream else json.loads(body)
        return build_record(exchange(dialect=dialect, request=recording["request"], response=response), 0)

    plain, streamed = record_of(dialect, stream=False), record_of(f"{dialect}_stream", stream=True)
    for name in ("model", "finish_reason", "tokens_in", "tokens_out", "tokens_total", "tool_calls", "response_status"):
        assert getattr(plain, name) == getattr(streamed, name), name
    assert plain.tokens_in
    assert plain.tokens_out


def test_totals() -> None:
    usages = [{"input_tokens": 3, "output_tokens": 4}, None, {"prompt_tokens": 1, "total_tokens": 9}]
    calls = [build_record(exchange(latency_ms=0.1 * i, response={"usage": usage}), i) for i, usage in enumerate(usages)]
    assert aggregate_model_call_records(iter(calls)) == {
        "tokens_in": 4,
        "tokens_out": 4,
        "tokens_reasoning": None,
        "tokens_total": 16,
        "cached_tokens": None,
        "latency_total_ms": 0.3,
        "num_calls": 3,
    }


def test_strict_and_tolerant_reads(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    assert read_model_call_records(store, "0-0") == []
    store.record("0-0", exchange(latency_ms=1.5))
    store.record("0-0", exchange(model_ref={"type": "nope", "name": "x"}))
    with store.path_for("0-0").open("ab") as file:
        file.write(b"{torn\n")
    store.record("0-0", exchange(latency_ms=2))
    records, invalid = read_available_model_call_records(store, "0-0")
    assert [record.call_index for record in records] == [0, 3]
    assert invalid == 2
    with pytest.raises(CaptureError, match=r"0-0\.capture\.jsonl: record 2"):
        read_model_call_records(store, "0-0")
    store.clear("0-0")
    store.record("0-0", exchange(model_ref={"type": "nope", "name": "x"}))
    with pytest.raises(CaptureError, match=r"0-0\.capture\.jsonl: record 0: .*"):
        aggregate_model_call_metrics(store, "0-0")
    store.clear("0-0")
    store.record("0-0", exchange(latency_ms=2))
    assert aggregate_model_call_metrics(store, "0-0")["num_calls"] == 1
    with pytest.raises(RolloutIdError):
        read_model_call_records(store, "../0-0")


def test_a_lone_surrogate_anywhere_costs_no_record() -> None:
    lone = "cut \ud83d"
    message = {"reasoning": lone, "tool_calls": [{"id": lone, "function": {"name": lone, "arguments": lone}}]}
    record = build_record(
        exchange(
            model_call_id=lone,
            client_session_id=lone,
            model_ref={"type": "responses_api_models", "name": lone},
            request={"model": lone},
            response={"id": lone, "choices": [{"message": message, "finish_reason": lone}]},
            response_raw=lone,
        ),
        0,
    )
    assert record.reasoning_content == record.model == record.finish_reason == lone
    assert record.tool_calls[0].arguments == {"_raw": lone}
    assert exact_json.loads(exact_json.dumps(record.as_json())) == record.as_json()


def test_counts_of_any_size_are_kept() -> None:
    record = build_record(exchange(response={"usage": {"input_tokens": 2**70, "output_tokens": 1}}), 0)
    assert record.tokens_total == 2**70 + 1
