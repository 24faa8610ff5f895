from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response, ResponseInputItemParam
from pydantic import TypeAdapter

from gym_ray.dialects.conversion.chat_to_responses import answer_to_responses, carried_settings, request_to_responses
from gym_ray.errors import EngineError, UnsupportedRequestError

RECORDINGS = Path(__file__).parents[2] / "recordings"
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
ITEMS = TypeAdapter(list[ResponseInputItemParam])


def items(*messages: Any) -> list[dict[str, Any]]:
    found = request_to_responses({"messages": list(messages)})["input"]
    ITEMS.validate_python(found)
    return found


def settings(**body: Any) -> dict[str, Any]:
    found = request_to_responses({"messages": [{"role": "user", "content": "hi"}], **body})
    del found["input"]
    return found


def refusal(**body: Any) -> UnsupportedRequestError:
    with pytest.raises(UnsupportedRequestError) as caught:
        request_to_responses({"messages": [{"role": "user", "content": "hi"}], **body})
    return caught.value


class TestMessages:
    @pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
    def test_texts_keep_their_role(self, role: str) -> None:
        assert items({"role": role, "content": "x", "name": "Ann"}) == [
            {"type": "message", "role": role, "content": "x"}
        ]

    def test_parts(self) -> None:
        parts = [
            {"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ==", "detail": "low"}},
            {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
            {"type": "file", "file": {"file_data": "QQ==", "filename": "a.pdf"}},
        ]
        assert items({"role": "user", "content": parts})[0]["content"] == [
            {"type": "input_text", "text": "a"},
            {"type": "input_image", "image_url": "data:image/png;base64,QQ==", "detail": "low"},
            {"type": "input_image", "image_url": "http://x/y.png", "detail": "auto"},
            {"type": "input_file", "file_data": "QQ==", "filename": "a.pdf"},
        ]

    def test_a_turn_with_a_tool(self) -> None:
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{bad"}}
        assistant = {"role": "assistant", "content": "calling", "reasoning_content": "why", "tool_calls": [call]}
        tool = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "42"}]}
        thought, said, called, result = items(assistant, tool)
        assert thought["summary"] == [{"type": "summary_text", "text": "why"}]
        assert said == {"type": "message", "role": "assistant", "content": "calling"}
        assert called == {
            "type": "function_call",
            "call_id": "call_1",
            "name": "f",
            "arguments": "{bad",
            "status": "completed",
        }
        assert result == {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [{"type": "input_text", "text": "42"}],
        }

    def test_tags_in_history_are_reasoning(self) -> None:
        thought, said = items({"role": "assistant", "content": "<think>why</think>so"})
        assert (thought["type"], thought["summary"][0]["text"], said["content"]) == ("reasoning", "why", "so")
        (user,) = items({"role": "user", "content": "<think>mine</think>x"})
        assert user["content"] == "<think>mine</think>x"

    def test_refusals(self) -> None:
        (item,) = items({"role": "assistant", "content": None, "refusal": "no"})
        assert item["content"] == [{"type": "refusal", "refusal": "no"}]
        parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}]
        (item,) = items({"role": "assistant", "content": parts})
        assert [part.get("text", part.get("refusal")) for part in item["content"]] == ["a", "no"]

    def test_an_empty_turn_of_the_assistant_stays(self) -> None:
        assert items({"role": "assistant", "content": None}) == [
            {"type": "message", "role": "assistant", "content": ""}
        ]

    def test_lone_surrogates_pass(self) -> None:
        (item,) = items({"role": "tool", "tool_call_id": "x", "content": "cut \ud83d"})
        assert item["output"] == "cut \ud83d"

    @pytest.mark.parametrize(
        ("message", "status", "path"),
        [
            (None, 422, "messages[0]"),
            ({"content": "x"}, 422, "messages[0].role"),
            ({"role": "function", "name": "f", "content": "x"}, 400, "messages[0].role"),
            ({"role": "user", "content": None}, 422, "messages[0].content"),
            ({"role": "user", "content": [{"type": "text"}]}, 422, "messages[0].content[0].text"),
            ({"role": "user", "content": [{"type": "input_audio"}]}, 400, "messages[0].content[0].type"),
            (
                {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
                422,
                "messages[0].content[0].image_url.url",
            ),
            ({"role": "assistant", "content": [{"type": "image_url"}]}, 400, "messages[0].content[0].type"),
            ({"role": "assistant", "content": "x", "function_call": {"name": "f"}}, 400, "messages[0].function_call"),
            ({"role": "assistant", "audio": {"id": "a"}}, 400, "messages[0].audio"),
            ({"role": "assistant", "tool_calls": {}}, 422, "messages[0].tool_calls"),
            ({"role": "assistant", "tool_calls": [{"id": "c"}]}, 422, "messages[0].tool_calls[0].function"),
            ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, 400, "messages[0].tool_calls[0].type"),
            ({"role": "tool", "content": "x"}, 422, "messages[0].tool_call_id"),
        ],
    )
    def test_a_bad_message_is_named(self, message: Any, status: int, path: str) -> None:
        error = refusal(messages=[message])
        assert (error.status, str(error).split(": ")[0]) == (status, path)

    @pytest.mark.parametrize("messages", [None, [], "x"])
    def test_messages_are_required(self, messages: Any) -> None:
        error = refusal(messages=messages)
        assert (error.status, str(error).split(": ")[0]) == (422, "messages")


class TestSettings:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("n", 2),
            ("logprobs", True),
            ("top_logprobs", 2),
            ("audio", {"voice": "x"}),
            ("modalities", ["text", "audio"]),
            ("functions", [{"name": "f"}]),
            ("function_call", "auto"),
            ("prediction", {"type": "content"}),
            ("web_search_options", {}),
            ("chat_template_kwargs", {"enable_thinking": False}),
            ("tools", [{"type": "custom", "custom": {"name": "f"}}]),
            ("tool_choice", "required"),
            ("response_format", {"type": "grammar"}),
        ],
    )
    def test_what_cannot_be_carried_is_refused_by_name(self, field: str, value: Any) -> None:
        error = refusal(**{field: value})
        assert error.status == 400
        assert str(error).startswith(field)

    def test_settings_that_ask_for_nothing_are_harmless(self) -> None:
        nothing = {"n": 1, "logprobs": False, "modalities": ["text"], "functions": [], "tools": [], "stream": True}
        assert settings(**nothing, tool_choice="auto", response_format={"type": "text"}, audio=None) == {}

    def test_settings_are_renamed(self) -> None:
        assert settings(
            model="m", max_tokens=5, reasoning_effort="low", verbosity="high", temperature=0, metadata={"a": "b"}
        ) == {
            "model": "m",
            "max_output_tokens": 5,
            "reasoning": {"effort": "low"},
            "text": {"verbosity": "high"},
            "temperature": 0,
            "metadata": {"a": "b"},
        }
        assert settings(max_tokens=5, max_completion_tokens=7) == {"max_output_tokens": 7}

    def test_formats(self) -> None:
        schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
        found = settings(response_format={"type": "json_schema", "json_schema": schema})
        assert found == {"text": {"format": {"type": "json_schema", **schema}}}
        assert settings(response_format={"type": "json_object"}) == {"text": {"format": {"type": "json_object"}}}

    def test_tools_are_flat_and_chats_defaults_are_written_out(self) -> None:
        bare = {"type": "function", "function": {"name": "g"}}
        choice = {"type": "function", "function": {"name": "f"}}
        assert settings(tools=[TOOL, bare], tool_choice=choice, parallel_tool_calls=False) == {
            "tools": [
                {"type": "function", **FUNCTION},
                {
                    "type": "function",
                    "name": "g",
                    "description": None,
                    "parameters": {"type": "object", "properties": {}},
                    "strict": False,
                },
            ],
            "tool_choice": {"type": "function", "name": "f"},
            "parallel_tool_calls": False,
        }

    def test_carried_settings(self) -> None:
        body = {"stop": "x", "top_k": 5, "seed": 2**64, "presence_penalty": 0, "logit_bias": {}, "user": "u", "n": 1}
        assert carried_settings(body) == {"stop": ["x"], "top_k": 5, "seed": 2**64, "presence_penalty": 0, "user": "u"}
        assert carried_settings({"stop": ["a", "b"], "logit_bias": {"5": -1}}) == {
            "stop": ["a", "b"],
            "logit_bias": {"5": -1},
        }
        assert carried_settings({"stop": [], "seed": None}) == {}
        with pytest.raises(UnsupportedRequestError, match="stop"):
            carried_settings({"stop": 5})


def completion(message: Any, **choice: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-9",
        "object": "chat.completion",
        "created": 5,
        "model": "served",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message, **choice}],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 2,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def response(answer: dict[str, Any], request: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    asked = {"input": "hi", "model": "asked"} if request is None else request
    before = copy.deepcopy((answer, asked))
    found = answer_to_responses(answer, asked, **settings)
    assert (answer, asked) == before
    Response.model_validate(found)
    return found


def output(message: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    return response(completion({"role": "assistant", **message}), **settings)["output"]


class TestAnswers:
    def test_settings_are_echoed_and_nothing_else(self) -> None:
        tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
        asked = {"temperature": 0.5, "instructions": "I", "tools": [tool], "tool_choice": "required", "user": "u"}
        found = response(completion({"content": "x"}), {"input": "hi", "required_prefix_token_ids": [1], **asked})
        assert found["tools"] == [{"description": None, "strict": None, **tool}]
        assert {key: found[key] for key in asked if key != "tools"} == {
            key: value for key, value in asked.items() if key != "tools"
        }
        assert "required_prefix_token_ids" not in found
        assert found["model"] == "served"

    def test_the_id_is_kept_only_on_demand(self) -> None:
        assert response(completion({"content": "x"}), keep_id=True)["id"] == "chatcmpl-9"
        assert response(completion({"content": "x"}))["id"].startswith("resp_")

    def test_only_the_first_choice(self) -> None:
        answer = completion({"content": "one"})
        answer["choices"].append({"index": 1, "message": {"content": "two"}})
        assert [part["text"] for part in response(answer)["output"][0]["content"]] == ["one"]

    def test_tags_are_split_only_when_asked(self) -> None:
        thought, said = output({"content": "<think>a</think>x<think>b</think>y"})
        assert [entry["text"] for entry in thought["summary"]] == ["a", "b"]
        assert said["content"][0]["text"] == "xy"
        (whole,) = output({"content": "<think>a</think>x"}, split_think=False)
        assert whole["content"][0]["text"] == "<think>a</think>x"

    @pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
    def test_reasoning_fields_are_one_item(self, field: str) -> None:
        thought, said = output({"content": "<think>more</think>x", field: "why"})
        assert [entry["text"] for entry in thought["summary"]] == ["why", "more"]
        assert said["content"][0]["text"] == "x"
        (alone,) = output({"content": None, field: "why"})
        assert alone["type"] == "reasoning"

    def test_encrypted_details_are_kept(self) -> None:
        details = [{"type": "reasoning.encrypted", "data": "E", "id": "rs_9"}]
        thought, _ = output({"content": "x", "reasoning": "why", "reasoning_details": details})
        assert (thought["id"], thought["encrypted_content"], thought["summary"][0]["text"]) == ("rs_9", "E", "why")

    def test_nothing_said_is_an_empty_message(self) -> None:
        (item,) = output({"content": None})
        assert item["content"] == [{"type": "output_text", "text": "", "annotations": []}]

    def test_text_and_refusal_are_one_message(self) -> None:
        (item,) = output({"content": "a", "refusal": "no"})
        assert [part["type"] for part in item["content"]] == ["output_text", "refusal"]

    def test_text_in_parts(self) -> None:
        (item,) = output({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
        assert item["content"][0]["text"] == "ab"

    def test_calls(self) -> None:
        calls = [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{bad"}},
            {"function": {"name": "g", "arguments": {"n": 2**64}}},
            {"id": "", "function": {"name": "h"}},
        ]
        first, second, third = output({"content": None, "tool_calls": calls})
        assert (first["id"], first["call_id"], first["arguments"]) == ("c1", "c1", "{bad")
        assert second["arguments"] == '{"n":18446744073709551616}'
        assert second["call_id"] == second["id"] != third["call_id"]
        assert third["call_id"].startswith("call_")
        assert third["arguments"] == ""

    def test_a_legacy_call(self) -> None:
        answer = completion({"function_call": {"name": "f", "arguments": "{}"}}, finish_reason="function_call")
        (call,) = response(answer)["output"]
        assert (call["type"], call["name"], call["arguments"]) == ("function_call", "f", "{}")

    def test_calls_of_custom_tools_come_back_as_such(self) -> None:
        asked = {"input": "hi", "tools": [{"type": "custom", "name": "patch"}]}
        calls = [
            {"id": "a", "function": {"name": "patch", "arguments": '{"input": "free"}'}},
            {"id": "b", "type": "custom", "custom": {"name": "patch", "input": "text"}},
        ]
        found = response(completion({"tool_calls": calls}), asked)["output"]
        assert [(item["type"], item["call_id"], item["input"]) for item in found] == [
            ("custom_tool_call", "a", "free"),
            ("custom_tool_call", "b", "text"),
        ]

    def test_a_stop_text_is_kept_aside(self) -> None:
        assert response(completion({"content": "x"}, stop_reason="###"))["gym_ray"] == {"stop_sequence": "###"}
        assert "gym_ray" not in response(completion({"content": "x"}, stop_reason="###", finish_reason="length"))
        for other in (None, 128009):
            assert "gym_ray" not in response(completion({"content": "x"}, stop_reason=other))

    def test_unknown_usage_is_null(self) -> None:
        answer = {**completion({"content": "x"}), "usage": None}
        assert response(answer)["usage"] is None

    @pytest.mark.parametrize(
        ("answer", "told"),
        [
            ({}, "choices is missing or empty"),
            ({"choices": []}, "choices is missing or empty"),
            ({"choices": None}, "choices is missing or empty"),
            ({"choices": {}}, "choices should be a list"),
            ({"choices": [None]}, "choices[0] should be an object, not null"),
            (completion(None), "choices[0].message should be an object, not null"),
            (completion({"content": 5}), "choices[0].message.content"),
            (completion({"content": [5]}), "choices[0].message.content[0]"),
            (completion({"refusal": []}), "choices[0].message.refusal"),
            (completion({"tool_calls": [{"id": "c"}]}), "choices[0].message.tool_calls[0].function"),
            (completion({"tool_calls": [{"function": {"name": []}}]}), "tool_calls[0].function.name"),
            (completion({"content": "x"}, finish_reason="abort"), "choices[0].finish_reason is 'abort'"),
            (completion({"content": ""}, error={"code": 502, "message": "up"}), "'up'"),
            ({"error": {"message": "no credit"}}, "'no credit'"),
            ({"error": "busy"}, "'busy'"),
            ({"object": "error", "message": "bad"}, "'bad'"),
        ],
    )
    def test_what_is_no_answer(self, answer: dict[str, Any], told: str) -> None:
        with pytest.raises(EngineError) as caught:
            answer_to_responses(answer, {"input": "hi"})
        assert caught.value.status == 502
        assert told in str(caught.value)

    def test_arguments_too_deep_to_write(self) -> None:
        deep: Any = {}
        for _ in range(100_000):
            deep = {"a": deep}
        with pytest.raises(EngineError, match="nests too deeply"):
            answer_to_responses(completion({"tool_calls": [{"function": {"name": "f", "arguments": deep}}]}), {})

    @pytest.mark.parametrize(
        "name", ["vllm_0_32/chat", "vllm_0_32/chat_two_turns", "llama_cpp/chat", "llama_cpp/chat_tools"]
    )
    def test_recorded_answers(self, name: str) -> None:
        recording = json.loads((RECORDINGS / f"{name}.json").read_text("utf-8"))
        answer = json.loads(recording["body"])
        asked = request_to_responses(recording["request"])
        found = answer_to_responses(answer, asked)
        usage, message = answer["usage"], answer["choices"][0]["message"]
        assert found["usage"]["input_tokens"] == usage["prompt_tokens"]
        assert found["usage"]["output_tokens"] == usage["completion_tokens"]
        assert found["status"] == ("incomplete" if answer["choices"][0]["finish_reason"] == "length" else "completed")
        texts = [part["text"] for item in found["output"] if item["type"] == "message" for part in item["content"]]
        assert "".join(texts) == (message["content"] or "")
        known = {**found["usage"]["input_tokens_details"], "cached_tokens": 0, "cache_write_tokens": 0}
        strict = {**found["usage"], "input_tokens_details": known, "output_tokens_details": {"reasoning_tokens": 0}}
        Response.model_validate({**found, "usage": strict})
