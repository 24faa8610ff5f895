"""Recorded answers of ``/completion`` become generations; what is missing is never made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.dialects.neutral import Finish, GenerationUsage
from gym_ray.dialects.sse import parse_objects
from gym_ray.errors import EngineError
from gym_ray.model_server.llama_cpp.completion import CompletionReader, SentPrompt
from gym_ray.token_id_capture.exact_tokens import ExactTokens, TokenOutcome, Untrainable

RECORDINGS = Path(__file__).parents[2] / "recordings" / "llama_cpp"
IDS = (624, 529, 115808, 236881, 3890, 528, 886, 3658)


def recording(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RECORDINGS / name).read_text())
    return loaded


def reader(prompt: list[int]) -> CompletionReader:
    return CompletionReader(SentPrompt(tuple(prompt)), calls=False, constrained=False)


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
    exact = one.tokens()
    assert isinstance(exact, ExactTokens)
    assert exact.generation_token_ids.tolist() == list(IDS)
    assert exact.generation_log_probs.tolist() == list(generation.log_probs)


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


SENT = SentPrompt((11, 12, 13, 14, 15), end_of_turn=3)


def outcome(sent: SentPrompt = SENT, **changes: Any) -> TokenOutcome:
    answer = {**LAST, **changes}
    one = CompletionReader(sent, calls=False, constrained=True)
    one.feed(answer)
    one.close(answer)
    return one.tokens()


def test_exact_tokens_are_what_was_sent_and_what_was_told() -> None:
    found = outcome()
    assert isinstance(found, ExactTokens)
    assert found.prompt_token_ids.tolist() == [11, 12, 13, 14, 15]
    assert found.generation_token_ids.tolist() == [1, 2, 3]
    assert found.generation_log_probs.tolist() == [-1.0, -2.0, -3.0]
    assert (found.constrained, found.ended_by, found.token_in) == (True, "eos", "")
    assert (found.prefix_requested, found.prefix_supplied) == (False, False)


def test_a_continuation_says_so_and_its_count_proves_it() -> None:
    sent = SentPrompt(SENT.ids, end_of_turn=3, continues=True)
    found = outcome(sent)
    assert isinstance(found, ExactTokens)
    assert (found.prefix_requested, found.prefix_supplied, found.token_in) == (True, True, "completion")
    other = outcome(sent, tokens_evaluated=4)
    assert other == Untrainable(
        "prefix_not_supplied", "5 prompt tokens were sent, the engine evaluated 4", prefix_requested=True
    )


@pytest.mark.parametrize(
    ("changes", "ended_by"),
    [
        ({"stop_type": "limit"}, "length"),
        ({"stop_type": "word", "stopping_word": "c"}, "stop_sequence"),
        ({"stop_type": "none"}, ""),
        ({"tokens": [1, 2, 4], "completion_probabilities": [{"id": n, "logprob": -1} for n in (1, 2, 4)]}, ""),
    ],
    ids=["length", "stop text", "unknown", "another end"],
)
def test_how_a_generation_ended(changes: dict[str, Any], ended_by: str) -> None:
    found = outcome(**changes)
    assert isinstance(found, ExactTokens)
    assert found.ended_by == ended_by


@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        ({"tokens_evaluated": 6}, "usage_mismatch", "5 prompt tokens were sent, the engine evaluated 6"),
        ({"truncated": True}, "usage_mismatch", "and it says that it cut the prompt"),
        ({"tokens_predicted": 4}, "ids_missing", "the engine predicted 4 tokens and reported 3"),
        ({"tokens": None}, "ids_missing", "the engine predicted 3 tokens and reported 0"),
        ({"completion_probabilities": None}, "log_prob_missing", "3 tokens have 0 log probabilities"),
        ({"completion_probabilities": LAST["completion_probabilities"][:2]}, "log_prob_missing", "have 2 log"),
        (
            {"completion_probabilities": [*LAST["completion_probabilities"][:2], {"id": 9, "logprob": -3.0}]},
            "log_prob_missing",
            "3 tokens have 3",
        ),
        (
            {"completion_probabilities": [*LAST["completion_probabilities"][:2], {"id": 3, "logprob": None}]},
            "non_finite_log_prob",
            "is null",
        ),
        (
            {"tokens": [-1], "tokens_predicted": 1, "completion_probabilities": [{"id": -1, "logprob": -3.0}]},
            "malformed_tokens",
            "-1",
        ),
    ],
)
def test_tokens_that_are_not_exact_are_named_with_their_numbers(
    changes: dict[str, Any], reason: str, detail: str
) -> None:
    found = outcome(**changes)
    assert isinstance(found, Untrainable)
    assert found.reason == reason
    assert detail in found.detail


def test_a_completion_that_did_not_end_has_no_tokens() -> None:
    one = reader([1])
    one.feed(LAST)
    assert one.tokens() == Untrainable("ids_missing", "the completion did not end")


def test_a_log_prob_that_is_null_leaves_none_of_them() -> None:
    assert read(completion_probabilities=[{"id": n, "logprob": None} for n in (1, 2, 3)]).log_probs is None
