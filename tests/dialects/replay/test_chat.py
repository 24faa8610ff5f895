from __future__ import annotations

from typing import Any

from gym_ray.dialects import CHAT
from gym_ray.dialects.replay import replay_frames
from gym_ray.dialects.sse import parse_objects

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 5, "model": "m"}


def chunks(*choices: Any, include_usage: bool = False, **members: Any) -> list[dict[str, Any]]:
    answer = {"id": "c", "object": "chat.completion", "created": 5, "model": "m", "choices": list(choices), **members}
    frames = replay_frames(CHAT, answer, include_usage=include_usage)
    assert frames[-1] == b"data: [DONE]\n\n"
    return parse_objects(b"".join(frames))


def deltas(message: dict[str, Any]) -> list[dict[str, Any]]:
    told = [chunk["choices"][0] for chunk in chunks({"message": message, "finish_reason": "stop"})]
    assert told[-1] == {"index": 0, "delta": {}, "finish_reason": "stop"}
    assert all(choice["finish_reason"] is None for choice in told[:-1])
    return [choice["delta"] for choice in told[:-1]]


def test_every_chunk_has_the_head_of_the_answer() -> None:
    told = chunks({"message": {"content": "a"}}, system_fingerprint="fp")
    assert all({**HEAD, "system_fingerprint": "fp"}.items() <= chunk.items() for chunk in told)


def test_texts_come_in_order_and_only_where_there_are_any() -> None:
    message = {"refusal": "no", "content": "c", "reasoning": "r", "tool_calls": []}
    expected = [{"role": "assistant"}, {"reasoning_content": "r"}, {"content": "c"}, {"refusal": "no"}]
    assert deltas(message) == expected
    assert deltas({"role": "tool", "content": "", "reasoning_content": None}) == [{"role": "tool"}]


def test_tool_calls_come_together_and_keep_what_else_they_say() -> None:
    signed = {"id": "a", "function": {"name": "f", "arguments": None}, "extra_content": {"signature": "S"}}
    custom = {"id": "b", "type": "custom", "custom": {"name": "g", "input": "x"}}
    parsed = {"id": "c", "type": "function", "function": {"name": "h", "arguments": {"n": 2**70}}}
    (_, delta) = deltas({"content": None, "tool_calls": [signed, custom, parsed, "no call"]})
    assert delta["tool_calls"] == [
        {**signed, "index": 0, "type": "function", "function": {"name": "f", "arguments": ""}},
        {**custom, "index": 1},
        {**parsed, "index": 2, "function": {"name": "h", "arguments": '{"n": 1180591620717411303424}'}},
    ]


def test_members_without_a_rule_follow_as_they_are() -> None:
    further = {"annotations": [{"type": "url_citation"}], "reasoning_details": [{"data": "E"}]}
    told = deltas({"content": "a", "audio": None, **further})
    assert told[2:] == [{key: further[key]} for key in ("reasoning_details", "annotations")]


def test_log_probabilities_go_with_the_words() -> None:
    scores = {"content": [{"token": "a", "logprob": -0.5}]}
    worded = [chunk["choices"][0] for chunk in chunks({"message": {"content": "a"}, "logprobs": scores})]
    assert [choice.get("logprobs") for choice in worded] == [None, scores, None]
    silent = [chunk["choices"][0] for chunk in chunks({"message": {"content": None}, "logprobs": scores})]
    assert [choice.get("logprobs") for choice in silent] == [None, scores]


def test_choices_are_numbered_by_position() -> None:
    told = chunks({"index": 7, "message": {"content": "A"}}, "no choice", {"index": 7, "message": {"content": "B"}})
    assert [chunk["choices"][0]["index"] for chunk in told] == [0, 0, 0, 2, 2, 2]


def test_usage_comes_last_and_only_when_asked_for_and_known() -> None:
    choice, usage = {"message": {"content": "a"}}, {"prompt_tokens": 1}
    assert chunks(choice, usage=usage, include_usage=True)[-1] == {**HEAD, "choices": [], "usage": usage}
    for told in (chunks(choice, usage=usage), chunks(choice, usage=None, include_usage=True)):
        assert all("usage" not in chunk for chunk in told)
        assert told[-1]["choices"]


def test_an_answer_without_choices_is_only_done() -> None:
    for choices in ([], None, {}):
        answer = {"id": "c", "choices": choices, "usage": {"prompt_tokens": 1}}
        assert replay_frames(CHAT, answer, include_usage=True) == [b"data: [DONE]\n\n"]


def test_what_chat_cannot_say_comes_with_the_head_of_the_stream() -> None:
    aside = {"unconverted": [{"type": "web_search_call"}]}
    told = chunks({"message": {"content": "a"}, "finish_reason": "stop"}, gym_ray=aside)
    assert [chunk.get("gym_ray") for chunk in told] == [aside, None, None]
