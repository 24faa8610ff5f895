"""Answers of real vLLM servers and of patched workers, read for staging."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture.adapters import VLLMCaptureAdapter
from gym_ray.token_id_capture.adapters.vllm import VLLMCaptureAdapter as SameAdapter

RECORDINGS = Path(__file__).parents[2] / "recordings" / "vllm_0_32"


def recorded(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(json.loads((RECORDINGS / f"{name}.json").read_text("utf-8"))["body"])
    return body


def content(*items: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {"choices": [{"message": {}, "logprobs": {"content": list(items)}, **choice}]}


@pytest.mark.parametrize("name", ["chat_tokens", "generate"])
def test_a_stock_answer_is_read_as_the_engine_counts_it(name: str) -> None:
    answer, adapter = recorded(name), VLLMCaptureAdapter()
    prompt = adapter.extract_prompt_ids(answer)
    generated, log_probs = adapter.extract_generation(answer)
    assert prompt == answer["prompt_token_ids"]
    assert generated == answer["choices"][0]["token_ids"]
    assert log_probs == [item["logprob"] for item in answer["choices"][0]["logprobs"]["content"]]
    assert len(prompt) == answer["usage"]["prompt_tokens"]
    assert len(generated) == answer["usage"]["completion_tokens"]
    assert adapter.extract_extras(answer) is None


def test_an_answer_without_ids_is_not_read_from_its_words() -> None:
    answer = recorded("chat_tokens")
    del answer["choices"][0]["token_ids"]
    with pytest.raises(ValueError, match=r"generation ids: index 0: 'ran' is no token id"):
        VLLMCaptureAdapter().extract_generation(answer)


def test_an_answer_of_digits_is_not_taken_for_ids() -> None:
    four, two = ({"token": digit, "logprob": -1.0, "bytes": list(digit.encode())} for digit in "42")
    with pytest.raises(ValueError, match=r"generation ids: index 0: '4' is no token id but text"):
        VLLMCaptureAdapter().extract_generation(content(four, two))
    assert VLLMCaptureAdapter().extract_generation(content({**four, "bytes": None})) == ([4], [-1.0])
    named = {"token": "token_id:42", "logprob": -1.0, "bytes": list(b"token_id:42")}
    assert VLLMCaptureAdapter().extract_generation(content(named)) == ([42], [-1.0])
    assert VLLMCaptureAdapter(strict=False).extract_generation(content(four, two))[0] == [4, 2]


def test_arrays_are_handed_on_as_they_are() -> None:
    ids, log_probs = np.array([3, 4]), np.array([-0.5, -1], np.float32)
    answer = {"prompt_token_ids": ids, "choices": [{"message": {"generation_token_ids": ids}}]}
    answer["choices"][0]["message"]["generation_log_probs"] = log_probs
    adapter = VLLMCaptureAdapter()
    assert adapter.extract_prompt_ids(answer) is ids
    generated, found = adapter.extract_generation(answer)
    assert generated is ids
    assert found is log_probs


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        (content({"token": "a", "logprob": -1.0}, token_ids=[1, 2]), ValueError, "2 generated ids have 1"),
        (content({"token_id": 2, "logprob": -1.0}, token_ids=[1]), ValueError, "log prob 0 is of token 2"),
        (content({"token": "token_id:2", "logprob": -1.0}, token_ids=[1]), ValueError, "log prob 0 is of token 2"),
        (content({"token_id": "x", "logprob": -1.0}, token_ids=[1]), ValueError, "'x' is no token id"),
        (content({"token": "a", "logprob": None}, token_ids=[1]), TypeError, "index 0: None is no log prob"),
        (content({"token": "a", "logprob": -9999.0}, token_ids=[1]), ValueError, "index 0: -9999.0 says"),
        (content({"token": "a", "logprob": True}, token_ids=[1]), TypeError, "index 0: True"),
        (content({"token": "a", "logprob": -1.0}, token_ids=[True]), ValueError, "index 0: True is no token id"),
        (content({"token": "a", "logprob": -1.0}, token_ids="1"), TypeError, "a list is needed, not str"),
        (content({"token": "token_id:", "logprob": -1.0}), ValueError, "'token_id:' is no token id"),
        (content({"token": "token_id:²", "logprob": -1.0}), ValueError, "is no token id"),
        (content({"token": "-3", "logprob": -1.0}), ValueError, "is no token id"),
        (content({"token": "9" * 21, "logprob": -1.0}), ValueError, "is no token id"),
        ({"choices": {}}, ValueError, "exactly one choice"),
        ({"choices": [{"message": [1]}]}, ValueError, "the message is no object"),
    ],
)
def test_what_is_not_exact_is_refused_with_its_place(answer: dict[str, Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        VLLMCaptureAdapter().extract_generation(answer)


def test_words_that_look_like_ids_do_not_contradict_the_ids_beside_them() -> None:
    answer = content({"token": "7", "logprob": -1.0}, {"token": "token_id:x", "logprob": -2.0}, token_ids=[1, 2])
    assert VLLMCaptureAdapter().extract_generation(answer) == ([1, 2], [-1.0, -2.0])


def test_routes_stand_in_the_message_or_in_the_choice() -> None:
    adapter = VLLMCaptureAdapter()
    choice = {"message": {"routed_experts": None}, "routed_experts": "abc"}
    assert adapter.extract_extras({"choices": [choice]}) == {"routed_experts": "abc"}
    choice["message"] = {"routed_experts": [[[1]]]}
    assert adapter.extract_extras({"choices": [choice]}) == {"routed_experts": [[[1]]]}


def test_extras_without_routes_are_not_touched() -> None:
    adapter, spans = VLLMCaptureAdapter(), {"media_spans": [{"offset": 1, "length": 2}]}
    lengths = {"prev_len": 0, "prompt_len": 2, "generation_len": 1}
    assert adapter.align_extras(spans, {}, **lengths) is spans
    assert adapter.align_extras(None, {}, **lengths) is None
    given = {"routed_experts": [[[1]]] * 2, **spans}
    assert adapter.align_extras(given, {}, **lengths) == {"routed_experts": [[[1]], [[1]], [[-1]]], **spans}
    assert given["routed_experts"] == [[[1]]] * 2


def test_routes_that_are_left_out_leave_the_other_extras() -> None:
    adapter, spans = VLLMCaptureAdapter(), {"media_spans": [{"offset": 1, "length": 2}]}
    lengths = {"prev_len": 0, "prompt_len": 1, "generation_len": 2}
    assert adapter.align_extras({"routed_experts": [[[1]]] * 2, **spans}, {}, **lengths) == spans
    assert adapter.align_extras({"routed_experts": [[[1]]] * 2}, {}, **lengths) is None


@pytest.mark.parametrize("holder", ["answer", "message"])
def test_media_of_the_older_format_are_refused_by_name(holder: str) -> None:
    adapter, media = VLLMCaptureAdapter(), {"media": [{"sha256": "0" * 64}]}
    message = {"role": "assistant", "content": "hi", **(media if holder == "message" else {})}
    answer = {**(media if holder == "answer" else {}), "media_spans": [], "choices": [{"message": message}]}
    with pytest.raises(ValueError, match="older format"):
        adapter.extract_extras(answer)
    message.pop("media", None)
    answer["media"] = None
    assert adapter.extract_extras(answer) == {"media_spans": []}


def test_it_has_one_name_in_two_places() -> None:
    assert SameAdapter is VLLMCaptureAdapter
