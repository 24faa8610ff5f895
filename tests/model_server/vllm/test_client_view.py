"""What a client asked to see, and what is taken out of its answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.model_server.vllm.client_view import ClientView

RECORDINGS = Path(__file__).parents[2] / "recordings/vllm_0_32"


def recorded(name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(json.loads((RECORDINGS / f"{name}.json").read_text())["body"])
    return answer


@pytest.mark.parametrize(
    ("body", "view"),
    [
        ({}, ClientView()),
        ({"return_token_ids": True}, ClientView(ids=True, experts=True)),
        ({"return_token_ids": 1, "logprobs": 1, "top_logprobs": True}, ClientView()),
        ({"logprobs": True, "top_logprobs": 3}, ClientView(log_probs=True, top_log_probs=3)),
        ({"stream_options": {"include_usage": True}}, ClientView(usage=True)),
        ({"stream_options": "usage"}, ClientView()),
        ({"routed_experts_prompt_start": 0}, ClientView(experts=True)),
    ],
)
def test_what_a_request_asks_to_see(body: dict[str, Any], view: ClientView) -> None:
    assert ClientView.of(body) == view


def test_a_stripped_answer_is_the_one_that_was_asked_for() -> None:
    answer, plain = recorded("chat_tokens"), recorded("chat")
    assert ClientView().strip(answer)
    assert {**answer, "id": None} == {**plain, "id": None}


def test_nothing_is_taken_from_those_who_asked() -> None:
    answer = recorded("chat_tokens")
    assert not ClientView(ids=True, log_probs=True).strip(answer)
    assert answer == recorded("chat_tokens")
    assert not ClientView().strip(recorded("chat"))


@pytest.mark.parametrize("place", ["message", "delta"])
def test_a_patched_workers_fields_leave_the_message(place: str) -> None:
    carried = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
    answer = {"choices": [{place: {"content": "a", **carried}}]}
    assert ClientView().strip(answer)
    assert answer == {"choices": [{place: {"content": "a"}}]}
    kept = {"choices": [{place: {"content": "a", **carried}}]}
    assert not ClientView(ids=True).strip(kept)


def test_the_routing_of_experts_is_for_those_who_asked() -> None:
    answer: dict[str, Any] = {"choices": [{"routed_experts": "AAAA"}]}
    assert not ClientView(experts=True).strip(answer)
    assert ClientView().strip(answer)
    assert answer["choices"][0]["routed_experts"] is None
    for place in ("message", "delta"):
        patched: dict[str, Any] = {"choices": [{place: {"content": "a", "routed_experts": [[1]]}}]}
        assert not ClientView(experts=True).strip(patched)
        assert ClientView().strip(patched)
        assert patched == {"choices": [{place: {"content": "a"}}]}


@pytest.mark.parametrize("answer", [{}, {"choices": None}, {"choices": [None, 3]}, {"choices": [{"message": "x"}]}])
def test_answers_of_any_shape_pass(answer: dict[str, Any]) -> None:
    assert not ClientView().strip(answer)
    assert not ClientView().hides(answer, stripped=True) or answer.get("choices") == []


@pytest.mark.parametrize(
    ("chunk", "hidden"),
    [
        ({"choices": [], "usage": {"prompt_tokens": 1}}, True),
        ({"choices": []}, False),
        ({"choices": [{"delta": {}, "finish_reason": None, "token_ids": None, "logprobs": None}]}, True),
        ({"choices": [{"delta": {"content": ""}, "token_ids": None}]}, False),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}]}, False),
        ({"choices": [{"index": 0}]}, False),
        ({"choices": [{"delta": {}, "logprobs": {"content": []}}]}, False),
        ({"choices": [{"delta": {}}, {"delta": {"content": "a"}}]}, False),
        ({"error": {"message": "gone"}}, False),
    ],
)
def test_chunks_that_are_there_for_the_capture_alone_are_hidden(chunk: dict[str, Any], hidden: bool) -> None:
    assert ClientView().hides(chunk, stripped=True) is hidden
    assert not ClientView(ids=True, usage=True).hides(chunk, stripped=True)


def test_a_silent_chunk_that_carried_nothing_is_the_servers_own() -> None:
    chunk = {"choices": [{"delta": {}, "finish_reason": None, "token_ids": None, "logprobs": None}]}
    assert not ClientView().hides(chunk, stripped=False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b'{"token_ids":[1, 2],"a":"\x01"}', b'{"token_ids":null,"a":"\x01"}'),
        (b'{"prompt_token_ids" : [],"x', b'{"prompt_token_ids" : null,"x'),
        (b'{"generation_log_probs":[-0.5,NaN],"generation_token_ids":[\n7', None),
        (b'{"content":"\\"token_ids\\": [1]","x":[1]', b'{"content":"\\"token_ids\\": [1]","x":[1]'),
        (b'{"token_ids":null,"tokens":[1]', b'{"token_ids":null,"tokens":[1]'),
        (b"data: <html>", b"data: <html>"),
    ],
)
def test_ids_are_taken_out_of_what_cannot_be_parsed(text: bytes, shown: bytes | None) -> None:
    expected = b'{"generation_log_probs":null,"generation_token_ids":null' if shown is None else shown
    assert ClientView().strip_unreadable(text) == expected
    assert ClientView(ids=True).strip_unreadable(text) == text
