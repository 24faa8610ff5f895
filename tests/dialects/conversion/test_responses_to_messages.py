from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message

from gym_ray.dialects.conversion.responses_to_messages import answer_to_messages, request_to_messages
from gym_ray.errors import EngineError, UnsupportedRequestError

RECORDINGS = Path(__file__).parents[2] / "recordings"


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments}


def result(call_id: str, output: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def asked(*items: Any, **members: Any) -> dict[str, Any]:
    body = {"model": "m", "input": list(items), **members}
    before = copy.deepcopy(body)
    converted = request_to_messages(body)
    assert body == before
    return converted


def answered(*output: Any, **members: Any) -> dict[str, Any]:
    response = {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "output": list(output)}
    response |= members
    before = copy.deepcopy(response)
    message = answer_to_messages(response, model=None)
    assert response == before
    Message.model_validate(message)
    return message


def message_item(*parts: Any) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": list(parts)}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


# --- requests ---


def test_a_whole_conversation() -> None:
    converted = asked(
        said("q"),
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "t"}],
            "encrypted_content": "s",
        },
        message_item(text_part("calling"), {"type": "refusal", "refusal": "no"}),
        call("c1", '{"a": 1}'),
        call("c2", "{bad"),
        result("c1", [{"type": "input_text", "text": "42"}]),
        result("c2"),
        said("go on"),
    )
    assert converted["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "text", "text": "calling"},
                {"type": "text", "text": "no"},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "c2", "name": "f", "input": {"_raw": "{bad"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "42"}]},
                {"type": "tool_result", "tool_use_id": "c2", "content": "ok"},
                {"type": "text", "text": "go on"},
            ],
        },
    ]


def test_results_stand_before_what_the_user_said_meanwhile() -> None:
    blocks = asked(call("c"), call("d"), said("wait"), result("c"), result("d"))["messages"][-1]["content"]
    assert [block.get("tool_use_id", block.get("text")) for block in blocks] == ["c", "d", "wait"]


def test_empty_texts_are_left_out() -> None:
    assert asked(said(""), said("", "assistant"), said("x"))["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "x"}]}
    ]


def test_a_failed_tool_is_told() -> None:
    (message,) = asked({**result("c"), "status": "incomplete"})["messages"]
    assert message["content"][0]["is_error"] is True


def test_unsigned_thinking_is_told_only_to_engines_that_take_it() -> None:
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "free"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "signed"}], "encrypted_content": "s"},
        {"type": "reasoning", "summary": [], "encrypted_content": "redacted_thinking:R"},
        {"type": "reasoning", "summary": []},
    ]
    free = {"type": "thinking", "thinking": "free", "signature": ""}
    signed = {"type": "thinking", "thinking": "signed", "signature": "s"}
    redacted = {"type": "redacted_thinking", "data": "R"}
    assert asked(*items)["messages"][0]["content"] == [free, signed, redacted]
    strict = request_to_messages({"input": items}, unsigned_thinking=False)
    assert strict["messages"][0]["content"] == [signed, redacted]


def test_custom_tools_take_one_text() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: x"}
    converted = asked(
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** begin"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        tools=[
            {"type": "custom", "name": "patch", "description": "Edits.", "format": grammar},
            {"type": "custom", "name": "free", "format": {"type": "text"}},
        ],
        tool_choice={"type": "custom", "name": "patch"},
    )
    assert converted["messages"][0]["content"][0]["input"] == {"input": "*** begin"}
    assert converted["messages"][1]["content"][0]["tool_use_id"] == "c"
    patch, free = converted["tools"]
    assert patch["description"] == "Edits.\n\nThe input must follow this lark grammar:\nstart: x"
    assert free["input_schema"]["required"] == ["input"]
    assert converted["tool_choice"] == {"type": "tool", "name": "patch"}


def test_tools_and_choices() -> None:
    tool = {"type": "function", "name": "f", "parameters": None, "description": "d", "strict": True}
    converted = asked(said("x"), tools=[tool], parallel_tool_calls=False)
    assert converted["tools"] == [
        {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}
    ]
    assert converted["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    for choice, kind in (("auto", "auto"), ("none", "none"), ("required", "any")):
        assert asked(said("x"), tools=[tool], tool_choice=choice)["tool_choice"] == {"type": kind}
    assert asked(said("x"), tools=[tool], tool_choice="none", parallel_tool_calls=False)["tool_choice"] == {
        "type": "none"
    }
    without = asked(said("x"), tools=[], tool_choice="auto", parallel_tool_calls=False)
    assert not without.keys() & {"tools", "tool_choice"}


def test_effort_and_format_have_a_form() -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    converted = asked(said("x"), reasoning={"effort": "minimal"}, text={"format": form, "verbosity": "low"})
    assert converted["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": {"type": "object"}},
    }
    plain = asked(said("x"), reasoning={"effort": "none", "summary": "auto"}, text={"format": {"type": "text"}})
    assert "output_config" not in plain


def test_carried_settings_are_written_in_this_dialect() -> None:
    carried = {"stop": ["x"], "top_k": 0, "user": "u", "seed": 7, "logit_bias": {"1": 2}}
    converted = request_to_messages({"input": "hi", "user": "other"}, carried=carried, default_max_tokens=77)
    assert converted == {
        "max_tokens": 77,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "stop_sequences": ["x"],
        "top_k": 0,
        "metadata": {"user_id": "u"},
    }
    assert asked(said("x"), safety_identifier="s", user="u")["metadata"] == {"user_id": "s"}


def test_harmless_values_pass() -> None:
    converted = asked(
        said("x"), store=False, background=False, truncation="disabled", include=["reasoning.encrypted_content"]
    )
    assert converted.keys() == {"model", "max_tokens", "messages"}


@pytest.mark.parametrize(
    ("members", "status", "path"),
    [
        ({"input": None}, 422, "input"),
        ({"input": 3}, 422, "input"),
        ({"input": ["x"]}, 422, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, 400, "input[0].type"),
        ({"input": [{"type": []}]}, 400, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, 422, "input[0].role"),
        ({"input": [{"role": "user"}]}, 422, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, 400,
         "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": []}]}]}, 400, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, 422, "input[0].content[0].text"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, 400,
         "input[0].content[0].file_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 422, "input[0].content[0].image_url"),
        ({"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": "http://x"}]}]}, 400,
         "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, 422, "input[0].arguments"),
        ({"input": [{"type": "function_call", "arguments": "{}", "name": "f"}]}, 422, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, 422, "input[0].output"),
        ({"instructions": []}, 422, "instructions"),
        ({"previous_response_id": "resp_0"}, 400, "previous_response_id"),
        ({"background": True}, 400, "background"),
        ({"truncation": "auto"}, 400, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, 400, "include[0]"),
        ({"max_output_tokens": 1.5}, 422, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, 422, "tools[0].name"),
        ({"tools": [{"type": "custom", "name": "c", "format": {"type": "grammar"}}]}, 422, "tools[0].format.syntax"),
        ({"tool_choice": "required"}, 422, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, 400, "tool_choice"),
        ({"tools": [{"type": "function", "name": "f"}], "parallel_tool_calls": 0}, 422, "parallel_tool_calls"),
        ({"reasoning": {"effort": "enormous"}}, 400, "reasoning.effort"),
        ({"reasoning": {"effort": {}}}, 400, "reasoning.effort"),
        ({"text": {"format": {"type": "json_object"}}}, 400, "text.format.type"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_by_the_path_of_its_field(members: dict[str, Any], status: int, path: str) -> None:
    with pytest.raises(UnsupportedRequestError) as caught:
        request_to_messages({"input": "hi", **members})
    assert (caught.value.status, caught.value.message.partition(": ")[0]) == (status, path)


# --- answers ---


def test_every_item_becomes_its_blocks() -> None:
    summary = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    message = answered(
        {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "SIG"},
        {"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "c"}]},
        {"type": "reasoning", "id": "rs_3", "summary": []},
        {"type": "reasoning", "id": "rs_4", "summary": [], "encrypted_content": "redacted_thinking:R"},
        message_item(text_part("x"), {"type": "refusal", "refusal": "y"}),
        call("c1", '{"n": 18446744073709551617}'),
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "text"},
    )
    assert message["content"] == [
        {"type": "thinking", "thinking": "a\nb", "signature": "SIG"},
        {"type": "thinking", "thinking": "c", "signature": ""},
        {"type": "redacted_thinking", "data": "R"},
        {"type": "text", "text": "x"},
        {"type": "text", "text": "y"},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"n": 2**64 + 1}},
        {"type": "tool_use", "id": "c2", "name": "patch", "input": {"input": "text"}},
    ]
    assert (message["id"], message["model"], message["stop_reason"]) == ("resp_1", "m", "tool_use")


def test_ids_and_models_that_are_missing() -> None:
    message = answer_to_messages({"output": []}, model="asked")
    assert (message["id"][:4], message["model"], message["stop_reason"]) == ("msg_", "asked", "end_turn")
    Message.model_validate(answer_to_messages({"output": []}, model=None))


@pytest.mark.parametrize("arguments", ["{bad", "[1]", "7", '"x"', "null"])
def test_arguments_that_are_no_object_are_kept_as_they_are(arguments: str) -> None:
    assert answered(call("c", arguments))["content"][0]["input"] == {"_raw": arguments}


def test_items_without_a_form_are_kept_aside_and_never_raise() -> None:
    search = {"type": "web_search_call", "id": "w", "status": "completed", "action": {}}
    picture = {"type": "output_audio", "data": "x"}
    odd = [search, {"type": []}, "x", None, {"type": "function_call", "call_id": "c"}]
    message = answered(message_item(text_part("a"), picture), *odd)
    assert message["content"] == [{"type": "text", "text": "a"}]
    assert message["gym_ray"] == {"unconverted": [picture, *odd]}


@pytest.mark.parametrize(
    ("members", "stop_reason", "stop_sequence"),
    [
        ({}, "end_turn", None),
        ({"gym_ray": {"stop_sequence": "END"}}, "stop_sequence", "END"),
        ({"gym_ray": []}, "end_turn", None),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "max_tokens", None),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "refusal", None),
        ({"status": "incomplete", "incomplete_details": {"reason": ["odd"]}}, "end_turn", None),
    ],
)
def test_why_it_ended(members: dict[str, Any], stop_reason: str, stop_sequence: str | None) -> None:
    message = answered(message_item(text_part("x")), **members)
    assert (message["stop_reason"], message["stop_sequence"]) == (stop_reason, stop_sequence)


def test_refusing_alone_is_a_refusal() -> None:
    refusal = {"type": "refusal", "refusal": "no"}
    assert answered(message_item(text_part(""), refusal))["stop_reason"] == "refusal"
    assert answered(message_item(text_part("but"), refusal))["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("response", "status", "message"),
    [
        ({"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow"}}, 429, "failed: 'slow'"),
        ({"status": "failed", "error": {"code": "server_error"}, "output": []}, 502, "the engine failed"),
        ({"status": "failed"}, 502, "status is 'failed'"),
        ({"error": {"message": "no such model"}}, 502, "'no such model'"),
        ({"status": "in_progress", "output": []}, 502, "status is 'in_progress'"),
        ({}, 502, "output should be a list of items, not null"),
    ],
)
def test_what_is_no_answer_is_the_engines_failure(response: dict[str, Any], status: int, message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        answer_to_messages(response, model=None)
    assert caught.value.status == status


@pytest.mark.parametrize("engine", ["vllm_0_32", "llama_cpp"])
def test_recorded_answers_are_valid_messages(engine: str) -> None:
    response = json.loads(json.loads((RECORDINGS / engine / "responses.json").read_text("utf-8"))["body"])
    message = answer_to_messages(response, model="asked")
    Message.model_validate(message)
    usage = message["usage"]
    cached = usage["cache_read_input_tokens"]
    assert usage["input_tokens"] + cached == response["usage"]["input_tokens"]
    assert cached == response["usage"]["input_tokens_details"]["cached_tokens"]
