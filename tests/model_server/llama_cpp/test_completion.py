"""Recorded answers of ``/completion`` become generations; what is missing is never made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.dialects.neutral import Finish, GenerationUsage
from gym_ray.dialects.sse import parse_objects
from gym_ray.errors import EngineError
from gym_ray.model_server.llama_cpp.completion import CompletionReader

RECORDINGS = Path(__file__).parents[2] / "recordings" / "llama_cpp"
IDS = (624, 529, 115808, 236881, 3890, 528, 886, 3658)


def recording(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RECORDINGS / name).read_text())
    return loaded


def reader(prompt: list[int]) -> CompletionReader:
    return CompletionReader(tuple(prompt), calls=False, constrained=False)


def test_a_whole_answer() -> None:
    recorded = recording("completion_tokens.json")
    answer = json.loads(recorded["body"])
    one = reader(recorded["request"]["prompt"])
    one.feed(answer)
    events, generation = one.close(answer)
    assert events == []
    assert generation.text == "and of italy? answer in one word"
    assert generation.finish is Finish.LENGTH
    assert generation.usage == GenerationUsage(69, answer["timings"]["cache_n"], 8)
    assert len(generation.prompt_token_ids) == 69
    assert generation.token_ids == IDS
    assert generation.log_probs is not None
    assert generation.log_probs == tuple(item["logprob"] for item in answer["completion_probabilities"])


def test_a_stream_gives_the_same_generation() -> None:
    recorded = recording("completion_tokens_stream.json")
    objects = parse_objects(recorded["body"].encode())
    one = reader(recorded["request"]["prompt"])
    shown = [event for item in objects for event in one.feed(item)]
    events, generation = one.close(objects[-1])
    assert "".join(getattr(event, "text", "") for event in shown + events) == generation.text
    assert generation.text == "and of italy? answer in one word"
    assert generation.token_ids == IDS
    assert generation.log_probs is not None
    assert len(generation.log_probs) == 8


LAST: dict[str, Any] = {
    "content": "ab",
    "tokens": [1, 2, 3],
    "completion_probabilities": [{"id": 1, "logprob": -1.0}, {"id": 2, "logprob": -2.0}, {"id": 3, "logprob": -3.0}],
    "tokens_evaluated": 5,
    "tokens_predicted": 3,
    "stop_type": "eos",
    "stopping_word": "",
    "timings": {"cache_n": 4},
}


def read(**changes: Any) -> Any:
    answer = {**LAST, **changes}
    one = reader([1])
    one.feed(answer)
    return one.close(answer)[1]


def test_a_missing_log_prob_leaves_none_of_them() -> None:
    short = read(completion_probabilities=LAST["completion_probabilities"][:2], stop_type="word", stopping_word="c")
    assert (short.token_ids, short.log_probs) == ((1, 2, 3), None)
    assert (short.finish, short.stop_sequence) == (Finish.STOP_SEQUENCE, "c")
    assert read(completion_probabilities=None).log_probs is None
    swapped = [*LAST["completion_probabilities"][:2], {"id": 9, "logprob": -3.0}]
    assert read(completion_probabilities=swapped).log_probs is None


def test_ids_that_do_not_match_the_engines_counter_are_not_exact() -> None:
    generation = read(tokens_predicted=4)
    assert (generation.token_ids, generation.log_probs) == (None, None)
    assert generation.usage.completion_tokens == 4


@pytest.mark.parametrize("change", [{"timings": {}}, {"timings": None}, {"tokens_evaluated": None}])
def test_an_answer_without_counters_is_an_error(change: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="lacks a counter"):
        read(**change)
