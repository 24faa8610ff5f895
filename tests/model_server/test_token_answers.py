"""What is taken out of the answers of engines that give tokens unasked."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ray.model_server.token_answers import without_tokens

TOKENS = {
    "prompt_token_ids": [1, 2],
    "generation_token_ids": [3],
    "generation_log_probs": [-0.5],
    "routed_experts": [[1]],
    "token_ids": [3],
}
NONE = dict.fromkeys(TOKENS)


@pytest.mark.parametrize(
    "build",
    [
        lambda tokens: {"id": "a", **tokens, "usage": {}},
        lambda tokens: {"output": [{"type": "message"}, {"type": "function_call", **tokens}]},
        lambda tokens: {"type": "message", "content": [{"type": "text", "text": "a", **tokens}, "odd"]},
        lambda tokens: {"choices": [{"index": 0, **tokens, "message": {"content": "a"}}]},
        lambda tokens: {"choices": [{"index": 0, "message": {"content": "a", **tokens}, "logprobs": None}, None]},
        lambda tokens: {"choices": [{**tokens, "message": {"content": "a", **tokens}}], **tokens, "output": [tokens]},
    ],
    ids=["answer", "item", "block", "choice", "message", "all"],
)
def test_tokens_are_taken_out_wherever_an_answer_carries_them(build: Any) -> None:
    for name, value in TOKENS.items():
        answer = build({name: value})
        assert without_tokens(answer) == build({})
        assert answer == build({name: value})
    assert without_tokens(build(TOKENS)) == build({})


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"id": "a", **NONE, "choices": [{**NONE, "message": {"content": "a", **NONE}}]},
        {"output": [NONE, 3, None], "content": [{"type": "text", **NONE}]},
        {"output": "x", "content": "x", "choices": "x"},
        {"choices": [{"message": "x"}, {"message": None}, [], None]},
        {"output": [{"content": [{"text": "token_ids"}]}]},
    ],
)
def test_an_answer_that_carries_none_is_left_as_it_is(answer: dict[str, Any]) -> None:
    assert without_tokens(answer) is None
