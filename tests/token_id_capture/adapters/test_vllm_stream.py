"""Exact tokens from streamed chunks: recorded ones, and every way in which a stream may not add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.dialects.sse import parse_objects
from gym_ray.token_id_capture.adapters.request_facts import RequestFacts
from gym_ray.token_id_capture.adapters.vllm import tokens_of_chat_answer
from gym_ray.token_id_capture.adapters.vllm_stream import ChatTokenStream
from gym_ray.token_id_capture.exact_tokens import ExactTokens, TokenOutcome, Untrainable

RECORDINGS = Path(__file__).parents[2] / "recordings/vllm_0_32"


def read(chunks: list[dict[str, Any]], asked: RequestFacts | None = None) -> TokenOutcome:
    stream = ChatTokenStream(asked)
    for chunk in chunks:
        stream.feed(chunk)
    return stream.outcome()


def recorded(name: str) -> list[dict[str, Any]]:
    return parse_objects(json.loads((RECORDINGS / f"{name}.json").read_text())["body"].encode())


def chunk(ids: Any = None, log_probs: Any = None, **choice: Any) -> dict[str, Any]:
    content = None if log_probs is None else {"content": [{"token": "x", "logprob": value} for value in log_probs]}
    return {"choices": [{"index": 0, "delta": {"content": ""}, "token_ids": ids, "logprobs": content, **choice}]}


FIRST = {"choices": [{"index": 0, "delta": {"role": "assistant"}}], "prompt_token_ids": [1, 2, 3]}
END = chunk(finish_reason="stop")


def usage(completion: Any, prompt: Any = 3) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def reason(outcome: TokenOutcome) -> str:
    assert isinstance(outcome, Untrainable), outcome
    return outcome.reason


def test_a_recorded_stream_says_what_its_chunks_say() -> None:
    chunks = recorded("chat_stream_usage_tokens")
    tokens = read(chunks)
    assert isinstance(tokens, ExactTokens)
    assert tokens.prompt_token_ids.tolist() == chunks[0]["prompt_token_ids"]
    assert tokens.generation_token_ids.tolist() == [289, 195, 33, 23, 10, 264, 158, 9]
    said = [c["choices"][0]["logprobs"]["content"][0]["logprob"] for c in chunks[1:-1]]
    assert tokens.generation_log_probs.tolist() == said
    assert tokens.ended_by == "length"


def test_a_stream_and_a_whole_answer_say_the_same() -> None:
    whole = tokens_of_chat_answer(json.loads(json.loads((RECORDINGS / "chat_tokens.json").read_text())["body"]))
    streamed = read(recorded("chat_stream_usage_tokens"))
    assert isinstance(whole, ExactTokens)
    assert isinstance(streamed, ExactTokens)
    for name in ("prompt_token_ids", "generation_token_ids", "generation_log_probs"):
        assert getattr(whole, name).tolist() == getattr(streamed, name).tolist()


def test_a_recorded_stream_of_two_choices_is_not_used() -> None:
    assert reason(read(recorded("chat_n2_stream"))) == "several_choices"


def test_a_recorded_stream_without_ids_reports_no_tokens() -> None:
    assert reason(read(recorded("chat_stream"))) == "engine_reports_no_tokens"


def test_ids_without_text_are_tokens_too() -> None:
    # B33: a tool parser holds the text back, the ids still come
    empty = {
        "choices": [
            {"index": 0, "delta": {}, "token_ids": [14], "logprobs": chunk([1], [-1])["choices"][0]["logprobs"]}
        ]
    }
    tokens = read([FIRST, chunk([13], [-0.5]), empty, END, usage(2)])
    assert isinstance(tokens, ExactTokens)
    assert tokens.generation_token_ids.tolist() == [13, 14]
    assert tokens.ended_by == "eos"


@pytest.mark.parametrize(
    ("chunks", "expected", "detail"),
    [
        ([FIRST, chunk([11], [-1]), chunk([12, 13], [-1, -1]), END, usage(5)], "ids_missing", "3 of 5"),
        ([FIRST, END, usage(2)], "ids_missing", "0 of 2"),
        ([chunk([11], [-1]), END, usage(1)], "prompt_ids_missing", ""),
        ([FIRST, chunk([11], [-1]), END], "usage_missing", ""),
        ([FIRST, chunk([11], [-1]), END, usage(None)], "usage_missing", ""),
        ([FIRST, chunk([11], [-1]), END, usage(1, prompt=4)], "usage_mismatch", "3 prompt ids, 4"),
        ([FIRST, chunk([11, 12], [-1, -1]), END, usage(1)], "usage_mismatch", "2 generated ids, 1"),
        ([FIRST, chunk([11], [-1]), chunk([12, 13]), END, usage(3)], "log_prob_missing", "1 of 3"),
        ([FIRST, chunk([11], [None]), END, usage(1)], "log_prob_missing", "token 0"),
        ([FIRST, chunk([5], [-0.1]), chunk([6], [-0.1, -0.2]), END, usage(2)], "length_mismatch", "cumulative: "),
        ([FIRST, chunk([5], [-0.1]), chunk([6], [-0.3, -0.2]), END, usage(2)], "length_mismatch", "trailing: "),
        ([FIRST, chunk([5]), chunk([6], [-0.1, -0.2]), END, usage(2)], "length_mismatch", "missing: "),
        ([FIRST, chunk([5, 6, 7], [-1] * 3, stop_reason=6), END, usage(3)], "length_mismatch", "past_stop"),
        ([FIRST, chunk([5, -1], [-1, -1]), END, usage(2)], "malformed_tokens", "token_ids"),
        ([FIRST, chunk([5.5], [-1]), END, usage(1)], "malformed_tokens", "token_ids"),
        ([FIRST, chunk("5", [-1]), END, usage(1)], "malformed_tokens", "not str"),
        ([FIRST | {"prompt_token_ids": "1"}, chunk([5], [-1]), END, usage(1)], "malformed_tokens", "prompt_token_ids"),
        ([FIRST, FIRST | {"prompt_token_ids": [1, 2, 4]}, chunk([5], [-1]), usage(1)], "several_carriers", ""),
        ([FIRST, chunk([5], [-1]), chunk([6], [-1], index=1), usage(2)], "several_choices", "2 choices"),
        ([FIRST, chunk([5], [-1]), chunk([6], [-1], index="b"), usage(2)], "several_choices", "2 choices"),
        ([{"error": {"message": "gone"}}], "engine_reports_no_tokens", ""),
        ([], "engine_reports_no_tokens", ""),
    ],
)
def test_a_stream_that_does_not_add_up_is_not_used(chunks: list[dict[str, Any]], expected: str, detail: str) -> None:
    outcome = read(chunks)
    assert reason(outcome) == expected
    assert isinstance(outcome, Untrainable)
    assert detail in outcome.detail


def test_prompt_ids_are_wanted_once_and_may_be_repeated() -> None:
    tokens = read([FIRST, FIRST, chunk([5], [-1]), END, usage(1)])
    assert isinstance(tokens, ExactTokens)
    assert tokens.prompt_token_ids.tolist() == [1, 2, 3]


def test_usage_that_grows_with_the_chunks_counts_at_its_end() -> None:
    tokens = read([FIRST, chunk([5], [-1]) | {"usage": usage(1)["usage"]}, chunk([6], [-1]), END, usage(2)])
    assert isinstance(tokens, ExactTokens)


def test_an_empty_generation_is_a_whole_one() -> None:
    tokens = read([FIRST, END, usage(0)])
    assert isinstance(tokens, ExactTokens)
    assert tokens.generation_token_ids.size == 0


def test_ids_in_place_of_the_log_probs_text_are_ids() -> None:
    named = {"content": [{"token": "token_id:5", "logprob": -1.0}, {"token": "token_id:6", "logprob": -2.0}]}
    tokens = read([FIRST, chunk(logprobs=named), END, usage(2)])
    assert isinstance(tokens, ExactTokens)
    assert tokens.generation_token_ids.tolist() == [5, 6]


def test_the_end_and_the_weights_of_a_stream_are_known() -> None:
    spans = [{"version": 4, "start": 0, "end": 1}]
    end = chunk([5], [-1], finish_reason="stop", stop_reason=5, weight_versions=spans, routed_experts=[[1]] * 3)
    tokens = read([FIRST, end, usage(1)])
    assert isinstance(tokens, ExactTokens)
    assert (tokens.ended_by, tokens.weight_spans[0].version, tokens.routed_experts) == ("eos", 4, [[1]] * 3)


def test_routing_in_parts_is_left_out() -> None:
    part = chunk([5], [-1], routed_experts=[[1]] * 3)
    tokens = read([FIRST, part, END | {"choices": [{"routed_experts": [[1]]}]}, usage(1)])
    assert isinstance(tokens, ExactTokens)
    assert tokens.routed_experts is None


@pytest.mark.parametrize(
    "odd", [{"choices": 3}, {"choices": [None, 3, "x"]}, {"choices": [{"logprobs": 4}]}, {"usage": 3}]
)
def test_odd_chunks_are_passed_over(odd: dict[str, Any]) -> None:
    assert isinstance(read([FIRST, odd, chunk([5], [-1]), END, usage(1)]), ExactTokens)


def test_the_prompt_is_known_before_the_first_token() -> None:
    stream = ChatTokenStream()
    assert stream.prompt is None
    stream.feed(FIRST)
    assert stream.prompt is not None
    assert stream.prompt.tolist() == [1, 2, 3]


def test_what_a_stream_keeps_does_not_grow_with_its_chunks() -> None:
    stream = ChatTokenStream()
    stream.feed(FIRST)
    for _ in range(10_000):
        stream.feed(chunk([5], [-1.0]))
    kept = stream._ids.buffer_info()[1] * stream._ids.itemsize + stream._report.log_probs.values.buffer_info()[1] * 8
    assert kept == 160_000
    assert not any(isinstance(value, list) and value for value in (stream._report.experts, stream._report.prompt))
