from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.model_call_capture.call_views import build_view, read_views
from gym_ray.model_call_capture.records import PAYLOAD_FIELDS, build_record

CALL: dict[str, Any] = {
    "model_call_id": "c0",
    "client_session_id": "s",
    "dialect": "responses",
    "model_ref": {"name": "policy_model", "type": "responses_api_models"},
    "started_at": 1786032154.1234567,
    "completed_at": 1786032154.96,
    "latency_ms": 842.7,
    "latency_ttft_ms": None,
    "status_code": 200,
    "error_category": None,
    "request": {"model": "toy", "input": [{"role": "user", "content": "q"}]},
    "response": {
        "id": "resp_0",
        "model": "toy-1",
        "status": "completed",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "denken ü"}]},
            {"type": "function_call", "call_id": "t1", "name": "look", "arguments": '{"a": 1}'},
        ],
        "usage": {"input_tokens": 3, "output_tokens": 1},
    },
}

odd = st.sampled_from(
    [
        None,
        True,
        0,
        7,
        -3,
        1.5,
        2.0e300,
        float("nan"),
        float("inf"),
        10**400,
        "",
        "text",
        "\ud800",
        "ü",
        [],
        {},
        {"\ud800": 1},
        {"type": "responses_api_models", "name": "n"},
        {"type": "responses_api_models", "name": "n", "more": 1},
        {"type": "responses_api_agents", "name": "n"},
        {"type": "responses_api_models", "name": "\udfff"},
        {"id": "\ud800", "choices": [{"finish_reason": "stop", "message": {"reasoning": "\ud800"}}]},
        {"id": 5, "output": [{"type": "function_call", "call_id": "c", "name": "n", "arguments": '{"\\ud800": 1}'}]},
        {"content": [{"type": "tool_use", "id": "\ud800", "name": "f", "input": {"a": 1}}], "stop_reason": "x"},
        "upstream",
        "local",
    ]
)
fields = st.sampled_from(
    [
        *CALL,
        "usage",
        "request_raw",
        "response_raw",
        "upstream_attempted",
        "response_source",
        "upstream_status_code",
        "local_response_reason",
    ]
)


def as_record(exchange: dict[str, Any]) -> dict[str, Any] | None:
    try:
        return build_record(exchange, 4).as_json()
    except ValueError:
        return None


@settings(max_examples=400)
@given(st.dictionaries(fields, odd, max_size=4), st.sets(fields, max_size=4))
def test_a_view_says_what_the_record_says(changed: dict[str, Any], left_out: set[str]) -> None:
    exchange = {name: value for name, value in (CALL | changed).items() if name not in left_out}
    before = copy.deepcopy(exchange)
    expected = as_record(exchange)
    if expected is None:
        with pytest.raises(ValueError, match="validation error"):
            build_view(exchange, 4)
    else:
        view = build_view(exchange, 4)
        assert repr(view.with_payloads()) == repr(expected)
        assert list(view.fields) == [name for name in expected if name not in PAYLOAD_FIELDS]
    assert repr(exchange) == repr(before)


@given(st.floats(0, 1e11, exclude_max=True))
def test_times_are_those_of_the_record(seconds: float) -> None:
    exchange = CALL | {"started_at": seconds}
    assert build_view(exchange, 0).fields["started_at"] == build_record(exchange, 0).as_json()["started_at"]


def test_a_plain_call_is_read_without_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = build_record(CALL, 0).as_json(include_payloads=False)
    monkeypatch.setattr("gym_ray.model_call_capture.call_views.build_record", None)
    view = build_view(CALL, 0)
    assert view.fields == expected
    assert list(view.fields) == list(expected)
    assert view.request is CALL["request"]


def test_what_cannot_be_read_is_counted_and_keeps_its_place() -> None:
    lines = [CALL, {"model_ref": 5}, "torn", CALL | {"status_code": 2**70}]
    data = b"".join((b'{"torn' if line == "torn" else json.dumps(line).encode()) + b"\n\n" for line in lines)
    views, unreadable = read_views(data)
    assert [(view.fields["call_index"], view.fields["status_code"]) for view in views] == [(0, 200), (3, 2**70)]
    assert unreadable == 2


@settings(max_examples=400)
@given(st.dictionaries(fields, odd, max_size=4), st.sets(fields, max_size=4))
def test_a_line_says_what_its_record_says(changed: dict[str, Any], left_out: set[str]) -> None:
    exchange = {name: value for name, value in (CALL | changed).items() if name not in left_out}
    line = json.dumps(exchange).encode()
    views, unreadable = read_views(b"{}\n" * 4 + line)
    expected = as_record(exchange)
    assert unreadable == (expected is None)
    assert expected is None or repr(views[-1].with_payloads()) == repr(expected)


def test_arguments_of_a_tool_may_hold_what_their_line_cannot() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "n", "arguments": '{"\\ud800": 1}'}
    exchange = CALL | {"response": {"output": [call]}}
    views, _ = read_views(json.dumps(exchange).encode())
    assert repr(views[0].with_payloads()) == repr(build_record(exchange, 0).as_json())
