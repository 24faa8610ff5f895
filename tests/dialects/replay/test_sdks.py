"""What the stream helpers of the official SDKs make of a replayed answer: the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anthropic
import anthropic.types
import httpx2
import openai
import openai.types.chat
import openai.types.responses
import pytest
from pydantic import TypeAdapter

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.replay import KEEP_ALIVE, failure_frames, replay_frames
from gym_ray.dialects.sse import parse_objects

QUESTION: Any = [{"role": "user", "content": "hi"}]
TEXT = "Hello \u2028 wörld 😀"
EVENT_MODELS: dict[str, Any] = {
    RESPONSES: openai.types.responses.ResponseStreamEvent,
    CHAT: openai.types.chat.ChatCompletionChunk,
    MESSAGES: anthropic.types.RawMessageStreamEvent,
}


def transport(frames: Sequence[bytes]) -> httpx2.MockTransport:
    body = KEEP_ALIVE + b"".join(frames)
    headers = {"content-type": "text/event-stream; charset=utf-8"}
    return httpx2.MockTransport(lambda request: httpx2.Response(200, headers=headers, content=body))


def openai_client(frames: Sequence[bytes]) -> openai.OpenAI:
    http = httpx2.Client(transport=transport(frames))
    return openai.OpenAI(api_key="k", base_url="http://server/v1", http_client=http, max_retries=0)


def anthropic_client(frames: Sequence[bytes]) -> anthropic.Anthropic:
    http = httpx2.Client(transport=transport(frames))
    return anthropic.Anthropic(api_key="k", base_url="http://server", http_client=http, max_retries=0)


def response(*items: dict[str, Any], **members: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 30,
        "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 0},
        "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 42,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 5,
        "model": "m",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "output": list(items),
        "usage": usage,
        **members,
    }


def message(*parts: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": list(parts)}


def text_part(text: str) -> dict[str, Any]:
    link = {"type": "url_citation", "start_index": 0, "end_index": 1, "title": "t", "url": "http://u"}
    return {"type": "output_text", "text": text, "annotations": [link], "logprobs": []}


CALL = {
    "id": "fc_1",
    "type": "function_call",
    "call_id": "c1",
    "name": "f",
    "arguments": '{"q":1}',
    "status": "completed",
}
REASONING = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "one"}, {"type": "summary_text", "text": "two"}],
    "content": [{"type": "reasoning_text", "text": "why"}],
    "encrypted_content": "E",
}
CUSTOM = {"id": "ct_1", "type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"}
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
RESPONSES_ANSWERS = {
    "text": response(message(text_part(TEXT))),
    "empty text": response(message(text_part(""))),
    "refusal": response(message({"type": "refusal", "refusal": "no"})),
    "tools": response(message(text_part("go")), CALL, {**CALL, "id": "fc_2", "call_id": "c3", "arguments": "{}"}),
    "reasoning": response(REASONING, message(text_part("ok")), CALL),
    "other items": response(CUSTOM, SEARCH),
    "nothing": response(),
}
CUT = response(
    message(text_part("Hel"), status="incomplete"),
    status="incomplete",
    incomplete_details={"reason": "max_output_tokens"},
)


def dumped(items: Any) -> list[dict[str, Any]]:
    """Items as they came, without what the helper itself adds."""
    found: list[dict[str, Any]] = []
    for item in items:
        value = item.to_dict()
        value.pop("parsed_arguments", None)
        for part in value.get("content") or ():
            part.pop("parsed", None)
        found.append(value)
    return found


@pytest.mark.parametrize("name", RESPONSES_ANSWERS)
def test_the_responses_helper_returns_the_answer(name: str) -> None:
    answer = RESPONSES_ANSWERS[name]
    with openai_client(replay_frames(RESPONSES, answer)).responses.stream(model="m", input="hi") as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert dumped(final.output) == answer["output"]
    assert "".join(texts) == final.output_text
    assert final.usage is not None
    assert final.usage.to_dict() == answer["usage"]
    assert (final.id, final.status) == ("resp_1", "completed")


def test_the_responses_helper_hears_that_an_answer_is_incomplete() -> None:
    with openai_client(replay_frames(RESPONSES, CUT)).responses.stream(model="m", input="hi") as stream:
        last = list(stream)[-1]
    assert last.type == "response.incomplete"
    assert dumped(last.response.output) == CUT["output"]
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    frames = replay_frames(RESPONSES, CUT, incomplete_event=False)
    with openai_client(frames).responses.stream(model="m", input="hi") as stream:
        final = stream.get_final_response()
    assert (final.status, dumped(final.output)) == ("incomplete", CUT["output"])


def test_the_responses_helper_hears_of_a_failure() -> None:
    failed = response(status="failed", error={"code": "server_error", "message": "gone"})
    for frames in (replay_frames(RESPONSES, failed), failure_frames(RESPONSES, status=502, message="gone")):
        with openai_client(frames).responses.stream(model="m", input="hi") as stream:
            last = list(stream)[-1]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert (last.response.error.code, last.response.error.message) == ("server_error", "gone")


@pytest.mark.parametrize("name", RESPONSES_ANSWERS)
def test_raw_responses_events(name: str) -> None:
    answer = RESPONSES_ANSWERS[name]
    with openai_client(replay_frames(RESPONSES, answer)).responses.create(model="m", input="hi", stream=True) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert dumped(event.item for event in events if event.type == "response.output_item.done") == answer["output"]


def completion(*choices: dict[str, Any]) -> dict[str, Any]:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "system_fingerprint": "fp",
        "choices": [{"index": index, **choice} for index, choice in enumerate(choices)],
        "usage": usage,
    }


CHAT_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
CHAT_ANSWERS = {
    "text": completion({"message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}),
    "refusal": completion(
        {"message": {"role": "assistant", "content": None, "refusal": "no"}, "finish_reason": "stop"}
    ),
    "reasoning": completion(
        {"message": {"role": "assistant", "content": "ok", "reasoning_content": "why"}, "finish_reason": "stop"}
    ),
    "tools": completion(
        {
            "message": {"role": "assistant", "content": "go", "tool_calls": [CHAT_CALL, {**CHAT_CALL, "id": "b"}]},
            "finish_reason": "tool_calls",
        }
    ),
    "two choices": completion(
        {"message": {"role": "assistant", "content": "A"}, "finish_reason": "stop"},
        {"message": {"role": "assistant", "content": "B"}, "finish_reason": "stop"},
    ),
}
CHAT_CUT = completion({"message": {"role": "assistant", "content": "Hel"}, "finish_reason": "length"})
CHAT_MEMBERS = ("role", "content", "refusal", "reasoning_content")


def chat_facts(choice: dict[str, Any]) -> dict[str, Any]:
    said = choice["message"]
    calls = [{key: call[key] for key in ("id", "type")} for call in said.get("tool_calls") or ()]
    functions = [(call["function"]["name"], call["function"]["arguments"]) for call in said.get("tool_calls") or ()]
    facts = {key: said.get(key) for key in CHAT_MEMBERS}
    return {**facts, "calls": calls, "functions": functions, "finish_reason": choice["finish_reason"]}


@pytest.mark.parametrize("name", CHAT_ANSWERS)
def test_the_chat_helper_returns_the_answer(name: str) -> None:
    answer = CHAT_ANSWERS[name]
    client = openai_client(replay_frames(CHAT, answer, include_usage=True))
    with client.chat.completions.stream(model="m", messages=QUESTION) as stream:
        final = stream.get_final_completion().to_dict()
    assert [chat_facts(choice) for choice in final["choices"]] == [chat_facts(choice) for choice in answer["choices"]]
    assert all(final[key] == answer[key] for key in ("id", "created", "model", "system_fingerprint", "usage"))


def test_the_chat_helper_hears_that_an_answer_is_cut_off() -> None:
    client = openai_client(replay_frames(CHAT, CHAT_CUT))
    with (
        client.chat.completions.stream(model="m", messages=QUESTION) as stream,
        pytest.raises(openai.LengthFinishReasonError) as raised,
    ):
        stream.get_final_completion()
    assert chat_facts(raised.value.completion.to_dict()["choices"][0]) == chat_facts(CHAT_CUT["choices"][0])


@pytest.mark.parametrize("name", CHAT_ANSWERS)
def test_raw_chat_chunks(name: str) -> None:
    answer = CHAT_ANSWERS[name]
    client = openai_client(replay_frames(CHAT, answer))
    with client.chat.completions.create(model="m", messages=QUESTION, stream=True) as stream:
        chunks = list(stream)
    texts = dict.fromkeys(range(len(answer["choices"])), "")
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {index: choice["message"]["content"] or "" for index, choice in enumerate(answer["choices"])}


def test_a_late_chat_failure_raises_in_the_client() -> None:
    client = openai_client(failure_frames(CHAT, status=429, message="slow down"))
    with (
        client.chat.completions.create(model="m", messages=QUESTION, stream=True) as stream,
        pytest.raises(openai.APIError, match="slow down") as raised,
    ):
        list(stream)
    assert raised.value.type == "rate_limit_error"


def claude_message(*blocks: dict[str, Any], stop_reason: str = "end_turn", **members: Any) -> dict[str, Any]:
    usage = {"input_tokens": 7, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 100, "output_tokens": 3}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "q",
        "content": list(blocks),
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage,
        **members,
    }


CITATION = {
    "type": "char_location",
    "cited_text": "x",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 1,
}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": [1, "größe"], "b": {}}}
MESSAGES_ANSWERS = {
    "text": claude_message({"type": "text", "text": TEXT}),
    "cited text": claude_message({"type": "text", "text": "a", "citations": [CITATION, CITATION]}),
    "tools": claude_message(
        {"type": "text", "text": "go"}, TOOL_USE, {**TOOL_USE, "input": {}}, stop_reason="tool_use"
    ),
    "thinking": claude_message(
        {"type": "thinking", "thinking": "why", "signature": "S"},
        {"type": "redacted_thinking", "data": "E"},
        {"type": "thinking", "thinking": "how", "signature": ""},
        {"type": "text", "text": "ok"},
    ),
    "refusal": claude_message(stop_reason="refusal"),
    "cut off": claude_message({"type": "text", "text": "Hel"}, stop_reason="max_tokens"),
    "stop text": claude_message({"type": "text", "text": "a"}, stop_reason="stop_sequence", stop_sequence="b"),
    "server tool": claude_message(
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
    ),
}


@pytest.mark.parametrize("name", MESSAGES_ANSWERS)
def test_the_messages_helper_returns_the_answer(name: str) -> None:
    answer = MESSAGES_ANSWERS[name]
    client = anthropic_client(replay_frames(MESSAGES, answer))
    with client.messages.stream(model="q", max_tokens=5, messages=QUESTION) as stream:
        texts = "".join(stream.text_stream)
        final = stream.get_final_message().to_dict()
    assert texts == "".join(block["text"] for block in answer["content"] if block["type"] == "text")
    assert {key: final.get(key) for key in answer} == answer


@pytest.mark.parametrize("name", MESSAGES_ANSWERS)
def test_raw_messages_events(name: str) -> None:
    answer = MESSAGES_ANSWERS[name]
    client = anthropic_client(replay_frames(MESSAGES, answer))
    with client.messages.create(model="q", max_tokens=5, messages=QUESTION, stream=True) as stream:
        events = list(stream)
    assert [event.type for event in events][:: len(events) - 1] == ["message_start", "message_stop"]
    started = [event.content_block.type for event in events if event.type == "content_block_start"]
    assert started == [block["type"] for block in answer["content"]]


def test_a_late_messages_failure_raises_in_the_client() -> None:
    client = anthropic_client(failure_frames(MESSAGES, status=529, message="busy"))
    with (
        client.messages.create(model="q", max_tokens=5, messages=QUESTION, stream=True) as stream,
        pytest.raises(anthropic.APIStatusError, match="overloaded_error"),
    ):
        list(stream)


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        *((RESPONSES, answer) for answer in (*RESPONSES_ANSWERS.values(), CUT)),
        *((CHAT, answer) for answer in (*CHAT_ANSWERS.values(), CHAT_CUT)),
        *((MESSAGES, answer) for answer in MESSAGES_ANSWERS.values()),
    ],
)
def test_strict_sdk_models_take_every_event(dialect: str, answer: dict[str, Any]) -> None:
    adapter = TypeAdapter(EVENT_MODELS[dialect])
    for payload in parse_objects(b"".join(replay_frames(dialect, answer, include_usage=True))):
        block = payload.get("content_block") or {}
        if block.get("type") == "thinking":
            block.setdefault(
                "signature", ""
            )  # a signed block is opened without it, and gets it in an event (A144, A145)
        adapter.validate_python(payload)
