from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response

from gym_ray import exact_json
from gym_ray.dialects import reading
from gym_ray.dialects.conversion.messages_to_responses import (
    answer_to_responses,
    carried_settings,
    request_to_responses,
)
from gym_ray.errors import EngineError, UnsupportedRequestError

RECORDINGS = Path(__file__).parents[2] / "recordings"


def asked(*blocks: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


def answered(*blocks: Any, **members: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": list(blocks),
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 4, "output_tokens": 2},
        **members,
    }


def convert(answer: dict[str, Any], request: dict[str, Any] | None = None) -> dict[str, Any]:
    before = copy.deepcopy(answer)
    response = answer_to_responses(answer, {"model": "asked", "input": "hi", **(request or {})})
    assert answer == before
    Response.model_validate(response)
    return response


# --- requests ---


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        ({"messages": {}}, 422, "messages"),
        ({"messages": ["x"]}, 422, "messages[0]"),
        ({"messages": [{"content": "x"}]}, 422, "messages[0].role"),
        ({"messages": [{"role": [], "content": "x"}]}, 422, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, 422, "messages[0].content"),
        (asked({"type": "document", "source": {}}), 400, "messages[0].content[0].type"),
        (asked({"type": "search_result"}), 400, "messages[0].content[0].type"),
        (asked({"type": ["x"]}), 400, "messages[0].content[0].type"),
        (asked({"type": "text"}), 422, "messages[0].content[0].text"),
        (asked({"type": "image"}), 422, "messages[0].content[0].source"),
        (asked({"type": "tool_use", "id": "t", "name": "f", "input": {}}), 422, "messages[0].content[0].type"),
        (asked({"type": "tool_result", "tool_use_id": "t"}, role="assistant"), 422, "messages[0].content[0].type"),
        (asked({"type": "image", "source": {}}, role="assistant"), 422, "messages[0].content[0].type"),
        (asked({"type": "server_tool_use", "id": "s"}, role="assistant"), 400, "messages[0].content[0].type"),
        (asked({"type": "tool_use", "id": "t", "name": "f", "input": "{}"}, role="assistant"), 422,
         "messages[0].content[0].input"),
        (asked({"type": "tool_result", "tool_use_id": 3}), 422, "messages[0].content[0].tool_use_id"),
        (asked({"type": "tool_result", "tool_use_id": "t", "is_error": "yes"}), 422,
         "messages[0].content[0].is_error"),
        (asked({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "document"}]}), 400,
         "messages[0].content[0].content[0].type"),
        ({"system": 3}, 422, "system"),
        ({"system": [{"type": "image"}]}, 400, "system[0].type"),
        ({"model": 3}, 422, "model"),
        ({"max_tokens": "9"}, 422, "max_tokens"),
        ({"temperature": "warm"}, 422, "temperature"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, "tools[0].type"),
        ({"tools": [{}]}, 422, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": []}]}, 422, "tools[0].input_schema"),
        ({"tool_choice": "auto"}, 422, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, 422, "tool_choice.name"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, 422,
         "tool_choice.disable_parallel_tool_use"),
        ({"output_config": {"effort": "enormous"}}, 400, "output_config.effort"),
        ({"output_config": {"effort": []}}, 400, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, 400, "output_config.format.type"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_by_the_path_of_its_field(body: dict[str, Any], status: int, path: str) -> None:
    with pytest.raises(UnsupportedRequestError) as caught:
        request_to_responses(body)
    assert (caught.value.status, caught.value.message.partition(": ")[0]) == (status, path)


def test_what_only_caches_or_cites_is_left_out() -> None:
    block = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}, "citations": None}
    assert request_to_responses(asked(block)) == {"input": [{"type": "message", "role": "user", "content": "hi"}]}


def test_an_assistants_texts_are_output_parts() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (item,) = request_to_responses(asked(*blocks, role="assistant"))["input"]
    assert [part["type"] for part in item["content"]] == ["output_text", "output_text"]
    assert (item["role"], item["status"], item["id"][:4]) == ("assistant", "completed", "msg_")


def test_a_system_message_among_the_others_keeps_its_place() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "be brief"}]
    assert [item["role"] for item in request_to_responses({"messages": messages})["input"]] == ["user", "system"]


def test_a_failed_tool_is_told() -> None:
    (item,) = request_to_responses(asked({"type": "tool_result", "tool_use_id": "t", "is_error": True}))["input"]
    assert item == {"type": "function_call_output", "call_id": "t", "output": "", "status": "incomplete"}


def test_serial_tool_use_and_strict_tools_are_kept() -> None:
    body = {
        "tools": [{"name": "f", "strict": True, "type": "custom"}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    }
    converted = request_to_responses(body)
    assert converted["parallel_tool_calls"] is False
    assert converted["tool_choice"] == "required"
    assert converted["tools"][0]["strict"] is True


def test_effort_and_format_have_a_form() -> None:
    config = {"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    converted = request_to_responses({"output_config": config})
    assert converted["reasoning"] == {"effort": "high"}
    assert converted["text"]["format"]["schema"] == {"type": "object"}


def test_big_integers_and_lone_surrogates_are_carried() -> None:
    value = {"n": 2**64, "cut \ud83d": "\udc00"}
    body = asked(
        {"type": "text", "text": "\ud83d"},
        {"type": "tool_use", "id": "t", "name": "f", "input": value},
        role="assistant",
    )
    text, call = request_to_responses(body)["input"]
    assert text["content"] == "\ud83d"
    assert exact_json.loads(call["arguments"].encode()) == value
    call["arguments"].encode("ascii")


def test_arguments_that_nest_too_deeply_are_the_clients_mistake() -> None:
    value: dict[str, Any] = {}
    for _ in range(100_000):
        value = {"a": value}
    with pytest.raises(UnsupportedRequestError, match=r"input: is nested too deeply") as caught:
        request_to_responses(asked({"type": "tool_use", "id": "t", "name": "f", "input": value}, role="assistant"))
    assert caught.value.status == 422


def test_settings_without_a_form_are_carried_by_neutral_names() -> None:
    body = {
        "stop_sequences": ["x", "\ud83d"],
        "top_k": 5,
        "metadata": {"user_id": "u"},
        "thinking": {"type": "enabled"},
    }
    assert carried_settings(body) == {"stop": ["x", "\ud83d"], "top_k": 5, "user": "u"}
    assert carried_settings({"stop_sequences": [], "top_k": None, "metadata": {}}) == {}
    for wrong in ({"stop_sequences": "x"}, {"stop_sequences": [1]}, {"top_k": 1.5}, {"metadata": {"user_id": 7}}):
        with pytest.raises(UnsupportedRequestError) as caught:
            carried_settings(wrong)
        assert caught.value.status == 422


# --- answers ---


def test_every_block_becomes_its_item() -> None:
    response = convert(
        answered(
            {"type": "thinking", "thinking": "why", "signature": "SIG"},
            {"type": "redacted_thinking", "data": "R"},
            {"type": "text", "text": "a", "citations": None},
            {"type": "text", "text": "b"},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
            stop_reason="tool_use",
        )
    )
    thinking, redacted, message, call = response["output"]
    assert (thinking["summary"][0]["text"], thinking["encrypted_content"]) == ("why", "SIG")
    assert (redacted["summary"], redacted["encrypted_content"]) == ([], "redacted_thinking:R")
    assert [part["text"] for part in message["content"]] == ["a", "b"]
    assert (call["call_id"], call["name"], call["arguments"]) == ("toolu_1", "f", '{"a": 1}')
    assert response["status"] == "completed"
    assert response["usage"]["total_tokens"] == 6


def test_settings_of_the_request_are_echoed_and_ids_are_fresh() -> None:
    tool = {"type": "function", "name": "f"}
    response = convert(answered(), {"temperature": 0.5, "tools": [tool], "tool_choice": "required"})
    assert (response["temperature"], response["tool_choice"], response["model"]) == (0.5, "required", "asked")
    assert response["tools"] == [{"description": None, "parameters": None, "strict": None, **tool}]
    assert response["id"].startswith("resp_")
    assert answer_to_responses(answered(), {}, keep_id=True)["id"] == "msg_1"
    assert answer_to_responses(answered(), {})["model"] == "m"


def test_an_empty_answer_has_an_empty_message() -> None:
    (item,) = convert(answered())["output"]
    assert item["content"][0]["text"] == ""


@pytest.mark.parametrize(
    ("stop_reason", "status", "details"),
    [
        ("end_turn", "completed", None),
        ("stop_sequence", "completed", None),
        ("tool_use", "completed", None),
        (None, "completed", None),
        (["odd"], "completed", None),
        ("max_tokens", "incomplete", {"reason": "max_output_tokens"}),
        ("model_context_window_exceeded", "incomplete", {"reason": "max_output_tokens"}),
        ("refusal", "incomplete", {"reason": "content_filter"}),
        ("pause_turn", "incomplete", {"reason": None}),
    ],
)
def test_why_it_ended(stop_reason: Any, status: str, details: dict[str, Any] | None) -> None:
    response = convert(answered({"type": "text", "text": "x"}, stop_reason=stop_reason))
    assert (response["status"], response["incomplete_details"]) == (status, details)
    assert response["output"][-1]["status"] == status


def test_the_stop_sequence_is_kept_aside() -> None:
    response = convert(answered({"type": "text", "text": "x"}, stop_reason="stop_sequence", stop_sequence="END"))
    assert response["gym_ray"] == {"stop_sequence": "END"}


def test_blocks_without_a_form_are_kept_aside_and_never_raise() -> None:
    odd: list[Any] = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "text", "text": None},
        {"type": "tool_use", "id": "t"},
        {"type": {}},
        "text",
        None,
    ]
    response = convert(answered({"type": "text", "text": "a"}, *odd, {"type": "text", "text": "b"}))
    assert [part["text"] for part in response["output"][0]["content"]] == ["a", "b"]
    assert response["gym_ray"]["unconverted"] == odd


def test_a_call_of_a_custom_tool_comes_back_as_one() -> None:
    tools = [{"type": "custom", "name": "patch"}, {"type": "function", "name": "f", "parameters": {}, "strict": False}]
    response = convert(
        answered(
            {"type": "tool_use", "id": "1", "name": "patch", "input": {"input": "*** begin"}},
            {"type": "tool_use", "id": "2", "name": "patch", "input": {"other": 1}},
            {"type": "tool_use", "id": "3", "name": "f", "input": {"input": "x"}},
        ),
        {"tools": tools},
    )
    assert [item["type"] for item in response["output"]] == ["custom_tool_call", "custom_tool_call", "function_call"]
    assert [item.get("input") for item in response["output"]] == ["*** begin", '{"other": 1}', None]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "failed: 'Overloaded'"),
        ({"error": {"type": "overloaded_error"}}, "the engine failed"),
        ({}, "content should be a list of blocks, not null"),
        ({"content": {"a": 1}}, "content should be a list"),
    ],
)
def test_what_is_no_message_is_the_engines_failure(answer: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        answer_to_responses(answer, {})
    assert caught.value.status == 502


def test_a_plain_text_is_read_as_one_block() -> None:
    response = convert({"content": "hello"})
    assert response["output"][0]["content"][0]["text"] == "hello"
    assert response["usage"] is None


@pytest.mark.parametrize("engine", ["vllm_0_32", "llama_cpp"])
def test_recorded_answers_say_the_same_afterwards(engine: str) -> None:
    recording = json.loads((RECORDINGS / engine / "messages.json").read_text("utf-8"))
    answer = json.loads(recording["body"])
    response = convert(answer, request_to_responses(recording["request"]))
    assert response["output"][0]["content"][0]["text"] == answer["content"][0]["text"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert reading.finish_reason(response) == "max_output_tokens"
