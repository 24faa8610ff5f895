"""Answers of a real llama.cpp server, read for staging."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture.adapters import LlamaCppCaptureAdapter

RECORDINGS = Path(__file__).parents[2] / "recordings" / "llama_cpp"


def recorded() -> dict[str, Any]:
    """The engine's answer with the ids that were sent, as a worker hands it on."""
    exchange = json.loads((RECORDINGS / "completion_tokens.json").read_text("utf-8"))
    return {**json.loads(exchange["body"]), "prompt_token_ids": exchange["request"]["prompt"]}


def test_an_answer_is_read_as_the_engine_counts_it() -> None:
    answer, adapter = recorded(), LlamaCppCaptureAdapter()
    assert adapter.extract_prompt_ids(answer) == answer["prompt_token_ids"]
    ids, log_probs = adapter.extract_generation(answer)
    assert ids == answer["tokens"]
    assert log_probs == [item["logprob"] for item in answer["completion_probabilities"]]
    assert len(ids) == answer["tokens_predicted"] == 8
    assert adapter.extract_extras(answer) is None
    answer["prompt_token_ids"] = sent = np.array(answer["prompt_token_ids"], np.uint32)
    assert adapter.extract_prompt_ids(answer) is sent


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"tokens_evaluated": 68}, ValueError, "69 prompt ids, the engine's tokens_evaluated says 68"),
        ({"tokens_evaluated": None}, ValueError, "says None"),
        ({"truncated": True}, ValueError, "cut the prompt"),
        ({"prompt_token_ids": None}, TypeError, "prompt_token_ids: a list is needed"),
        ({"prompt_token_ids": [1.5] * 69}, ValueError, "index 0: 1.5"),
    ],
)
def test_a_prompt_that_the_engine_did_not_see_is_refused(
    changes: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        LlamaCppCaptureAdapter().extract_prompt_ids({**recorded(), **changes})


def test_tokens_without_a_log_prob_are_refused() -> None:
    answer = recorded()
    answer["completion_probabilities"] = answer["completion_probabilities"][:-1]
    with pytest.raises(ValueError, match="8 tokens have 7 completion_probabilities"):
        LlamaCppCaptureAdapter().extract_generation(answer)


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"tokens": [1]}, ValueError, "1 tokens, the engine's tokens_predicted says 8"),
        ({"tokens": None}, TypeError, "tokens: a list is needed, not NoneType"),
        ({"completion_probabilities": None}, TypeError, "send n_probs: 1"),
        ({"completion_probabilities": [{"id": 0, "logprob": -1.0}] * 8}, ValueError, "0 is of token 0"),
        ({"completion_probabilities": [{}] * 8}, KeyError, "id"),
    ],
)
def test_what_is_not_exact_is_refused(changes: dict[str, Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        LlamaCppCaptureAdapter().extract_generation({**recorded(), **changes})


def test_a_log_prob_that_is_not_finite_is_null_and_refused() -> None:
    answer = recorded()
    answer["completion_probabilities"][3]["logprob"] = None
    with pytest.raises(TypeError, match="index 3: None is no log probability"):
        LlamaCppCaptureAdapter().extract_generation(answer)


def test_a_prefix_is_entered_as_a_copy() -> None:
    prefix = [1, 2]
    request = LlamaCppCaptureAdapter().enter_prefix({"n_predict": 4}, prefix)
    prefix.append(3)
    assert request == {"n_predict": 4, "required_prefix_token_ids": [1, 2]}
