from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from pydantic import TypeAdapter

from gym_ray.dialects.conversion.responses_to_chat import answer_to_chat, request_to_chat
from gym_ray.errors import EngineError, UnsupportedRequestError

RECORDINGS = Path(__file__).parents[2] / "recordings"
FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
MESSAGES = TypeAdapter(list[ChatCompletionMessageParam])


def messages(items: Any, **body: Any) -> list[dict[str, Any]]:
    found = request_to_chat({"input": items, **body})["messages"]
    MESSAGES.validate_python(found)
    return found


def settings(**body: Any) -> dict[str, Any]:
    found = request_to_chat({"input": "hi", **body})
    del found["messages"]
    return found


def refusal(**body: Any) -> UnsupportedRequestError:
    with pytest.raises(UnsupportedRequestError) as caught:
        request_to_chat({"input": "hi", **body})
    return caught.value


class TestMessages:
    def test_without_instructions_system_and_developer_messages_stay(self) -> None:
        found = messages([{"role": "developer", "content": "D"}, {"role": "system", "content": "S"}])
        assert found == [{"role": "developer", "content": "D"}, {"role": "system", "content": "S"}]

    def test_instructions_absorb_only_the_leading_run(self) -> None:
        run = [
            {"role": "system", "content": ""},
            {"role": "developer", "content": [{"type": "input_text", "text": "D"}]},
        ]
        later = [{"role": "user", "content": "u"}, {"role": "system", "content": "late"}]
        assert messages([*run, *later], instructions="I") == [{"role": "system", "content": "I\n\nD"}, *later]

    def test_empty_instructions_are_none(self) -> None:
        assert messages([{"role": "system", "content": "S"}], instructions="") == [{"role": "system", "content": "S"}]

    def test_instructions_before_a_string(self) -> None:
        assert messages("hi", instructions="I") == [
            {"role": "system", "content": "I"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        ]

    def test_thoughts_stand_where_they_were_thought(self) -> None:
        def thought(*texts: str) -> dict[str, Any]:
            return {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": t} for t in texts]}

        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
        assert messages([thought("a", "b"), said, thought("c"), said]) == [
            {"role": "assistant", "content": "<think>a</think><think>b</think>x<think>c</think>x"}
        ]

    def test_reasoning_text_of_the_content_is_used_where_no_summary_is(self) -> None:
        item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "raw"}]}
        assert messages([item]) == [{"role": "assistant", "content": "<think>raw</think>"}]

    def test_encrypted_reasoning_alone_is_no_message(self) -> None:
        sealed = {"type": "reasoning", "summary": [], "encrypted_content": "E"}
        assert messages([{"role": "user", "content": "u"}, sealed]) == [{"role": "user", "content": "u"}]

    def test_an_empty_turn_of_the_assistant_stays(self) -> None:
        assert messages([{"role": "assistant", "content": ""}]) == [{"role": "assistant", "content": ""}]

    def test_calls_alone_have_no_text(self) -> None:
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{bad"}
        (message,) = messages([call])
        assert message["content"] is None
        assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{bad"}

    def test_two_turns_of_tools_stay_apart(self) -> None:
        def round_of(call_id: str) -> list[dict[str, Any]]:
            call = {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}
            return [call, {"type": "function_call_output", "call_id": call_id, "output": "1"}]

        assert [message["role"] for message in messages(round_of("a") + round_of("b"))] == ["assistant", "tool"] * 2

    def test_custom_calls_are_calls_with_one_text(self) -> None:
        call = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'say "x"'}
        result = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
        assistant, tool = messages([call, result])
        assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"input": 'say "x"'}
        assert tool == {"role": "tool", "tool_call_id": "c", "content": "done"}

    def test_files_and_images(self) -> None:
        parts = [
            {"type": "input_image", "image_url": "data:image/png;base64,QQ=="},
            {"type": "input_file", "file_data": "QQ==", "filename": "a.pdf"},
        ]
        assert messages([{"role": "user", "content": parts}])[0]["content"] == [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}},
            {"type": "file", "file": {"file_data": "QQ==", "filename": "a.pdf"}},
        ]

    def test_lone_surrogates_pass(self) -> None:
        output = {"type": "function_call_output", "call_id": "c", "output": "cut \ud83d"}
        assert messages([output])[0]["content"] == "cut \ud83d"

    @pytest.mark.parametrize(
        ("item", "status", "path"),
        [
            ("x", 422, "input[0]"),
            ({"role": "tool", "content": "x"}, 422, "input[0].role"),
            ({"role": "user", "content": None}, 422, "input[0].content"),
            ({"role": "user", "content": [{"type": "input_text"}]}, 422, "input[0].content[0].text"),
            ({"role": "user", "content": [{"type": "input_audio"}]}, 400, "input[0].content[0].type"),
            ({"role": "system", "content": [{"type": "input_image"}]}, 400, "input[0].content[0].type"),
            ({"role": "user", "content": "x", "phase": "commentary"}, 400, "input[0].phase"),
            ({"role": "assistant", "content": "x", "phase": "commentary"}, 400, "input[0].phase"),
            ({"type": "function_call", "call_id": "c", "name": "f"}, 422, "input[0].arguments"),
            ({"type": "function_call", "name": "f", "arguments": ""}, 422, "input[0].call_id"),
            ({"type": "function_call_output", "output": "1"}, 422, "input[0].call_id"),
            ({"type": "item_reference", "id": "x"}, 400, "input[0].type"),
            ({"type": ["deep"]}, 400, "input[0].type"),
        ],
    )
    def test_a_bad_item_is_named(self, item: Any, status: int, path: str) -> None:
        error = refusal(input=[item])
        assert (error.status, str(error).split(": ")[0]) == (status, path)

    @pytest.mark.parametrize(
        ("part", "culprit"),
        [
            ({"type": "input_image", "file_id": "file-1"}, "file_id"),
            ({"type": "input_image", "image_url": "http://x", "detail": "original"}, "original"),
            ({"type": "input_file", "file_id": "file-1"}, "file_id"),
            ({"type": "input_file", "file_url": "http://x"}, "file_url"),
        ],
    )
    def test_references_have_no_chat_form(self, part: dict[str, Any], culprit: str) -> None:
        error = refusal(input=[{"role": "user", "content": [part]}])
        assert error.status == 400
        assert culprit in str(error)


class TestSettings:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("background", True),
            ("context_management", [{"type": "compaction"}]),
            ("conversation", "conv_1"),
            ("include", ["reasoning.encrypted_content"]),
            ("max_tool_calls", 3),
            ("previous_response_id", "resp_1"),
            ("prompt", {"id": "p"}),
            ("top_logprobs", 2),
            ("truncation", "auto"),
            ("reasoning", {"summary": "auto"}),
            ("tools", [{"type": "web_search"}]),
            ("tool_choice", "required"),
        ],
    )
    def test_what_chat_lacks_is_refused_by_name(self, field: str, value: Any) -> None:
        error = refusal(**{field: value})
        assert error.status == 400
        assert field in str(error)

    def test_settings_that_ask_for_nothing_are_harmless(self) -> None:
        nothing = {"background": False, "include": [], "truncation": "disabled", "previous_response_id": None}
        assert settings(**nothing, reasoning={"effort": None, "summary": None}, text={}, stream=True) == {}

    def test_settings_of_the_same_name_are_copied(self) -> None:
        same = {"store": False, "service_tier": "auto", "safety_identifier": "s", "prompt_cache_key": "k"}
        assert settings(**same, temperature=None) == same

    def test_tools_and_their_choice_are_nested(self) -> None:
        found = settings(tools=[FUNCTION], tool_choice={"type": "function", "name": "f"}, parallel_tool_calls=False)
        nested = {key: FUNCTION[key] for key in ("name", "description", "parameters", "strict")}
        assert found == {
            "tools": [{"type": "function", "function": nested}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "parallel_tool_calls": False,
        }

    def test_a_custom_tool_becomes_a_function_of_one_text(self) -> None:
        tool = {"type": "custom", "name": "patch", "description": "Edits."}
        found = settings(tools=[tool], tool_choice={"type": "custom", "name": "patch"})
        schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
        function = {"name": "patch", "description": "Edits.", "parameters": schema}
        assert found["tools"] == [{"type": "function", "function": function}]
        assert found["tool_choice"] == {"type": "function", "function": {"name": "patch"}}

    @pytest.mark.parametrize(
        ("tools", "choice", "path"),
        [
            ("x", None, "tools"),
            ([{"type": "function"}], None, "tools[0].name"),
            ([{**FUNCTION, "parameters": []}], None, "tools[0].parameters"),
            ([FUNCTION], {"type": "function"}, "tool_choice.name"),
            ([FUNCTION], {"type": "allowed_tools"}, "tool_choice"),
            ([FUNCTION], "sometimes", "tool_choice"),
            ([], {"type": "function", "name": "f"}, "tool_choice"),
        ],
    )
    def test_bad_tools_are_named(self, tools: Any, choice: Any, path: str) -> None:
        assert str(refusal(tools=tools, tool_choice=choice)).split(": ")[0] == path

    def test_carried_settings_are_written(self) -> None:
        carried = {
            "stop": ["x"],
            "top_k": 5,
            "seed": 2**64,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.25,
            "logit_bias": {"1": 2},
            "user": "u",
            "other": 1,
        }
        found = request_to_chat({"input": "hi"}, carried=carried)
        del found["messages"]
        assert found == {key: value for key, value in carried.items() if key != "other"}

    def test_the_bodys_own_user_wins(self) -> None:
        assert request_to_chat({"input": "hi", "user": "a"}, carried={"user": "b"})["user"] == "a"

    def test_input_is_required(self) -> None:
        with pytest.raises(UnsupportedRequestError, match="input: is required"):
            request_to_chat({})

    def test_a_message_about_a_hostile_value_can_be_written(self) -> None:
        deep: Any = []
        for _ in range(100_000):
            deep = [deep]
        for body in ({"tool_choice": deep}, {"reasoning": {"\ud83d": 1}}, {"tools": [{"type": deep}]}):
            str(refusal(**body)).encode()
        str(refusal(input=[{"type": "x" * 10_000 + "\ud83d"}])).encode()


def completion(response: dict[str, Any], **settings: Any) -> dict[str, Any]:
    before = copy.deepcopy(response)
    found = answer_to_chat(response, **settings)
    assert response == before
    ChatCompletion.model_validate(found)
    return found


def message(*items: dict[str, Any]) -> dict[str, Any]:
    return completion({"output": list(items)})["choices"][0]["message"]


def said(*texts: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": t} for t in texts]}


CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": '{"a": 1}'}


class TestAnswers:
    def test_a_whole_answer(self) -> None:
        thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "why"}]}
        response = {
            "id": "resp_1",
            "created_at": 5.0,
            "model": "served",
            "status": "completed",
            "service_tier": "default",
            "output": [thought, said("he", "llo"), CALL],
            "usage": {"input_tokens": 4, "output_tokens": 2, "total_tokens": 6},
        }
        found = completion(response, model="asked")
        details = {
            "prompt_tokens_details": {"cached_tokens": None, "cache_write_tokens": None},
            "completion_tokens_details": {"reasoning_tokens": None},
        }
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        assert found == {
            "id": "resp_1",
            "object": "chat.completion",
            "created": 5,
            "model": "asked",
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": "hello",
                        "refusal": None,
                        "reasoning_content": "why",
                        "tool_calls": [call],
                    },
                    "logprobs": None,
                    "finish_reason": "tool_calls",
                }
            ],
            "service_tier": "default",
            "system_fingerprint": None,
            "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6, **details},
        }

    def test_texts_and_calls_alone(self) -> None:
        assert message() == {"role": "assistant", "content": "", "refusal": None}
        assert message(CALL)["content"] is None
        refused = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
        assert message(refused) == {"role": "assistant", "content": None, "refusal": "no"}

    @pytest.mark.parametrize(
        ("extra", "reason"),
        [
            ({"status": "completed"}, "stop"),
            ({}, "stop"),
            ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
            ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
            ({"status": "incomplete"}, "length"),
        ],
    )
    def test_finish_reason(self, extra: dict[str, Any], reason: str) -> None:
        assert completion({"output": [said("x")], **extra})["choices"][0]["finish_reason"] == reason

    def test_a_cut_answer_is_cut_though_it_calls(self) -> None:
        found = completion({"output": [CALL], "status": "incomplete"})
        assert found["choices"][0]["finish_reason"] == "length"

    def test_arguments_stay_what_they_are(self) -> None:
        def arguments(value: Any) -> str:
            return message({**CALL, "arguments": value})["tool_calls"][0]["function"]["arguments"]

        assert arguments("{bad") == "{bad"
        assert arguments(None) == ""
        assert arguments({"n": 2**64, "s": "\ud83d"}) == '{"n":18446744073709551616,"s":"\\ud83d"}'

    def test_calls_without_an_id_get_one(self) -> None:
        assert message({"type": "function_call", "name": "f"})["tool_calls"][0]["id"].startswith("call_")
        assert message({"type": "function_call", "name": "f", "id": "fc_9"})["tool_calls"][0]["id"] == "fc_9"

    def test_custom_calls(self) -> None:
        call = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "free"}
        assert message(call)["tool_calls"] == [
            {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "free"}}
        ]

    def test_signed_reasoning_is_kept_for_the_next_turn(self) -> None:
        item = {"type": "reasoning", "id": "rs_1", "summary": [{"text": "t"}], "encrypted_content": "S"}
        assert message(item, said("x"))["reasoning_details"] == [
            {"id": "rs_1", "type": "reasoning.text", "text": "t", "signature": "S"}
        ]

    def test_items_without_a_form_are_kept_aside(self) -> None:
        search = {"type": "web_search_call", "id": "w", "status": "completed"}
        found = completion({"output": [search, said("x")]})
        assert found["gym_ray"] == {"unconverted": [search]}
        assert found["choices"][0]["message"]["content"] == "x"

    def test_what_an_answer_does_not_tell(self) -> None:
        found = completion({"output": [], "service_tier": "odd", "created_at": float("inf")})
        assert found["id"].startswith("chatcmpl-")
        assert found["created"] > 1_700_000_000
        assert (found["model"], found["service_tier"], found["usage"]) == ("", None, None)

    @pytest.mark.parametrize(
        ("answer", "told"),
        [
            ({}, "output is missing"),
            ({"output": {}}, "output should be a list"),
            ({"output": [None]}, "output[0] should be an object, not null"),
            ({"output": [{"type": "message", "content": [1]}]}, "output[0].content[0]"),
            ({"output": [{"type": "message", "content": [{"text": 1}]}]}, "output[0].content[0].text"),
            ({"output": [{"type": "function_call", "name": 1}]}, "output[0].name"),
            ({"output": [], "status": "failed"}, "status is failed"),
            ({"output": [], "status": "in_progress"}, "status is in_progress"),
            ({"output": [], "status": "failed", "error": {"message": "gone"}}, "'gone'"),
            ({"object": "error", "message": "bad"}, "'bad'"),
        ],
    )
    def test_what_is_no_answer(self, answer: dict[str, Any], told: str) -> None:
        with pytest.raises(EngineError) as caught:
            answer_to_chat(answer)
        assert caught.value.status == 502
        assert told in str(caught.value)

    def test_a_rate_limit_is_told_as_one(self) -> None:
        with pytest.raises(EngineError) as caught:
            answer_to_chat({"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow down"}})
        assert caught.value.status == 429

    @pytest.mark.parametrize("engine", ["vllm_0_32", "llama_cpp"])
    def test_recorded_answers(self, engine: str) -> None:
        recording = json.loads((RECORDINGS / engine / "responses.json").read_text("utf-8"))
        response = json.loads(recording["body"])
        found = completion(response)
        usage = response["usage"]
        assert found["id"] == response["id"]
        assert found["usage"]["prompt_tokens"] == usage["input_tokens"]
        assert found["usage"]["completion_tokens"] == usage["output_tokens"]
        texts = [part["text"] for item in response["output"] for part in item["content"] if "text" in part]
        assert found["choices"][0]["message"]["content"] == "".join(texts)
