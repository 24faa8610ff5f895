"""Three dialects, one conversation; and every refusal names its field."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.neutral import PromptRequest, ResponseFormat, Sampling, Tool, ToolCall, ToolChoice, Turn
from gym_ray.dialects.synthesis import read_request
from gym_ray.errors import UnsupportedRequestError

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
CALL = ToolCall("c1", "find", '{"q": "x"}')
CONVERSATION = (
    Turn("system", "Be brief."),
    Turn("user", "Find x."),
    Turn("assistant", "Looking.", (CALL,)),
    Turn("tool", '{"found": 1}'),
    Turn("assistant", "One."),
    Turn("user", "Again."),
)
TOOLS = (Tool("find", "Finds.", SCHEMA),)

RESPONSES_BODY: dict[str, Any] = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Find "}, {"type": "input_text", "text": "x."}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
        {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"q": "x"}'},
        {"type": "function_call_output", "call_id": "c1", "output": '{"found": 1}'},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "Again."},
    ],
    "tools": [{"type": "function", "name": "find", "description": "Finds.", "parameters": SCHEMA, "strict": True}],
    "tool_choice": {"type": "function", "name": "find"},
    "max_output_tokens": 9,
    "temperature": 0,
    "top_p": 0.5,
}
CHAT_BODY: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Find x."}]},
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"found": 1}'},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "Again."},
    ],
    "tools": [{"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "find"}},
    "max_completion_tokens": 9,
    "max_tokens": 100,
    "temperature": 0,
    "top_p": 0.5,
    "n": 1,
    "logprobs": False,
}
MESSAGES_BODY: dict[str, Any] = {
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "Find x."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "c1", "name": "find", "input": {"q": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": '{"found": 1}'}]}
            ],
        },
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": [{"type": "text", "text": "Again."}]},
    ],
    "tools": [{"name": "find", "description": "Finds.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "find"},
    "max_tokens": 9,
    "temperature": 0,
    "top_p": 0.5,
}
BODIES = {RESPONSES: RESPONSES_BODY, CHAT: CHAT_BODY, MESSAGES: MESSAGES_BODY}


@pytest.mark.parametrize("dialect", BODIES)
def test_the_same_conversation_reads_the_same_in_every_dialect(dialect: str) -> None:
    assert read_request(dialect, BODIES[dialect]) == PromptRequest(
        turns=CONVERSATION,
        tools=TOOLS,
        tool_choice=ToolChoice("required", "find"),
        sampling=Sampling(max_tokens=9, temperature=0.0, top_p=0.5),
    )


def test_a_string_input_is_one_user_turn() -> None:
    assert read_request(RESPONSES, {"input": "hi"}).turns == (Turn("user", "hi"),)


def test_stop_texts_seeds_and_penalties() -> None:
    chat = read_request(
        CHAT,
        {"messages": [{"role": "user", "content": "hi"}], "stop": "END", "seed": 3, "presence_penalty": 1},
    )
    assert chat.sampling == Sampling(stop=("END",), seed=3, presence_penalty=1.0)
    messages = read_request(
        MESSAGES,
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "stop_sequences": ["a", "b"], "top_k": 4},
    )
    assert messages.sampling == Sampling(max_tokens=1, top_k=4, stop=("a", "b"))


@pytest.mark.parametrize(
    ("value", "choice"),
    [("auto", ToolChoice("auto")), ("none", ToolChoice("none")), ("required", ToolChoice("required"))],
)
def test_tool_choices(value: str, choice: ToolChoice) -> None:
    anthropic = {"auto": "auto", "none": "none", "required": "any"}[value]
    assert read_request(RESPONSES, {**RESPONSES_BODY, "tool_choice": value}).tool_choice == choice
    assert read_request(CHAT, {**CHAT_BODY, "tool_choice": value}).tool_choice == choice
    assert read_request(MESSAGES, {**MESSAGES_BODY, "tool_choice": {"type": anthropic}}).tool_choice == choice


def test_response_formats() -> None:
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA}
    assert read_request(RESPONSES, {"input": "x", "text": {"format": form}}).response_format == ResponseFormat(SCHEMA)
    assert read_request(RESPONSES, {"input": "x", "text": {"format": {"type": "text"}}}).response_format is None
    messages = [{"role": "user", "content": "x"}]
    chat = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    assert read_request(CHAT, {"messages": messages, "response_format": chat}).response_format == ResponseFormat(SCHEMA)
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    anthropic = read_request(MESSAGES, {"messages": messages, "max_tokens": 1, "output_config": config})
    assert anthropic.response_format == ResponseFormat(SCHEMA)
    anything = read_request(CHAT, {"messages": messages, "response_format": {"type": "json_object"}})
    assert anything.response_format == ResponseFormat(None)


USER = [{"role": "user", "content": "x"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
BAD: list[tuple[str, dict[str, Any], int, str]] = [
    (RESPONSES, {}, 422, "input: is required"),
    (RESPONSES, {"input": None}, 422, "input: is required"),
    (RESPONSES, {"input": []}, 422, "input: is empty"),
    (RESPONSES, {"input": 3}, 422, "input: should be a list, not int"),
    (RESPONSES, {"input": ["x"]}, 422, "input[0]: should be an object, not str"),
    (RESPONSES, {"input": [{"role": "robot", "content": "x"}]}, 422, "input[0].role: 'robot'"),
    (
        RESPONSES,
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        400,
        "input[0].content[0].type: 'input_image'",
    ),
    (RESPONSES, {"input": [{"type": "web_search_call"}]}, 400, "input[0].type: 'web_search_call'"),
    (
        RESPONSES,
        {"input": [{"type": "function_call", "call_id": "c", "name": "f"}]},
        422,
        "input[0].arguments: should be a string, not null",
    ),
    (RESPONSES, {"input": [{"type": "function_call_output", "output": "x"}]}, 422, "input[0].call_id: should"),
    (RESPONSES, {"input": "x", "tools": [{"type": "web_search"}]}, 400, "tools[0].type: 'web_search'"),
    (RESPONSES, {"input": "x", "previous_response_id": "resp_1"}, 400, "previous_response_id: is not supported"),
    (RESPONSES, {"input": "x", "background": True}, 400, "background: is not supported"),
    (RESPONSES, {"input": "x", "max_output_tokens": 0}, 422, "max_output_tokens: should lie between 1"),
    (RESPONSES, {"input": "x", "temperature": "hot"}, 422, "temperature: should be a number, not str"),
    (RESPONSES, {"input": "x", "temperature": True}, 422, "temperature: should be a number, not bool"),
    (RESPONSES, {"input": "x", "tool_choice": "required"}, 422, "tool_choice: demands a call, but tools is empty"),
    (RESPONSES, {**RESPONSES_BODY, "tool_choice": {"type": "function", "name": "g"}}, 422, "tool_choice: names 'g'"),
    (RESPONSES, {"input": "x", "text": {"format": {"type": "yaml"}}}, 400, "text.format.type: 'yaml'"),
    (RESPONSES, {"input": "\ud800"}, 422, "input: has a lone surrogate at character 0"),
    (
        RESPONSES,
        {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"const": "\ud800"}}]},
        422,
        "tools[0].parameters: has a lone surrogate",
    ),
    (RESPONSES, {"input": "x", "stream": 1}, 422, "stream: should be true or false, not 1"),
    (CHAT, {}, 422, "messages: is required"),
    (CHAT, {"messages": []}, 422, "messages: is empty"),
    (CHAT, {"messages": USER, "n": 2}, 400, "n: is not supported"),
    (CHAT, {"messages": USER, "n": True}, 400, "n: is not supported"),
    (CHAT, {"messages": USER, "logprobs": True}, 400, "logprobs: is not supported"),
    (CHAT, {"messages": USER, "modalities": ["text", "audio"]}, 400, "modalities: "),
    (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, 400, "messages[0].content[0].type: 'image_url'"),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, 422, "messages[0].tool_call_id: should"),
    (CHAT, {"messages": USER, "stop": [""]}, 422, "stop: holds an empty string"),
    (CHAT, {"messages": USER, "tools": CHAT_BODY["tools"] * 2}, 422, "tools: two tools are called 'find'"),
    (MESSAGES, {"max_tokens": 1}, 422, "messages: is required"),
    (MESSAGES, {"messages": USER}, 422, "max_tokens: is required"),
    (MESSAGES, {"messages": [{"role": "system", "content": "x"}], "max_tokens": 1}, 422, "messages[0].role: 'system'"),
    (
        MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}], "max_tokens": 1},
        400,
        "messages[0].content[0].type: 'image'",
    ),
    (
        MESSAGES,
        {"messages": USER, "max_tokens": 1, "tools": [{"type": "bash_20250124", "name": "bash"}]},
        400,
        "tools[0]",
    ),
]


@pytest.mark.parametrize(("dialect", "body", "status", "message"), BAD)
def test_a_bad_request_is_refused_by_the_name_of_its_field(
    dialect: str, body: dict[str, Any], status: int, message: str
) -> None:
    with pytest.raises(UnsupportedRequestError) as caught:
        read_request(dialect, body)
    assert caught.value.message.startswith(message)
    assert caught.value.status == status


def test_a_body_nested_too_deeply_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(UnsupportedRequestError, match="request body: is nested too deeply"):
        read_request(RESPONSES, {"input": "x", "metadata": deep})
