"""Exact tokens from whole answers: recorded ones, and every way in which one may not add up."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture.adapters.vllm import RequestFacts, tokens_of_chat_answer, tokens_of_generate_answer
from gym_ray.token_id_capture.exact_tokens import ExactTokens, Untrainable
from gym_ray.token_id_capture.extras import WeightSpan

RECORDINGS = Path(__file__).parents[2] / "recordings/vllm_0_32"


def recorded(name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(json.loads((RECORDINGS / f"{name}.json").read_text())["body"])
    return answer


def chat(
    ids: Any = (5, 6), log_probs: Any = (-0.5, -0.25), prompt: Any = (1, 2, 3), completion: Any = None, **choice: Any
) -> dict[str, Any]:
    content = [{"token": "x", "logprob": value, "bytes": None} for value in log_probs]
    return {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "x"},
                "token_ids": list(ids),
                "logprobs": {"content": content},
                "finish_reason": "stop",
                "stop_reason": None,
                **choice,
            }
        ],
        "prompt_token_ids": list(prompt),
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids) if completion is None else completion},
    }


def patched(message: dict[str, Any], prompt_tokens: int = 2, completion_tokens: int = 2) -> dict[str, Any]:
    return {
        "choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens},
    }


def exact(outcome: object) -> ExactTokens:
    assert isinstance(outcome, ExactTokens), outcome
    return outcome


def refused(outcome: object) -> tuple[str, str]:
    assert isinstance(outcome, Untrainable), outcome
    return outcome.reason, outcome.detail


def test_a_recorded_chat_answer_gives_its_ids_and_log_probs() -> None:
    answer = recorded("chat_tokens")
    tokens = exact(tokens_of_chat_answer(answer))
    assert tokens.prompt_token_ids.tolist() == answer["prompt_token_ids"]
    assert tokens.generation_token_ids.tolist() == answer["choices"][0]["token_ids"]
    expected = [item["logprob"] for item in answer["choices"][0]["logprobs"]["content"]]
    assert tokens.generation_log_probs.tolist() == expected
    assert tokens.prompt_token_ids.dtype == np.uint32
    assert (tokens.ended_by, tokens.constrained, tokens.weight_spans) == ("length", False, ())
    assert (tokens.prefix_requested, tokens.prefix_supplied, tokens.token_in) == (False, False, "")


def test_a_recorded_generate_answer_gives_its_weight_versions_too() -> None:
    answer = recorded("generate")
    tokens = exact(tokens_of_generate_answer(answer))
    assert tokens.prompt_token_ids.tolist() == answer["prompt_token_ids"]
    assert tokens.generation_token_ids.tolist() == [289, 195, 90, 143, 23, 71, 157, 232]
    assert tokens.weight_spans == (WeightSpan("default", 0, 8),)
    assert tokens.ended_by == "length"


@pytest.mark.parametrize("name", ["chat", "chat_two_turns", "derender"])
def test_an_answer_that_was_not_asked_for_ids_reports_no_tokens(name: str) -> None:
    assert refused(tokens_of_chat_answer(recorded(name)))[0] == "engine_reports_no_tokens"


def test_an_engines_error_reports_no_tokens() -> None:
    assert refused(tokens_of_chat_answer(recorded("unknown_model")))[0] == "engine_reports_no_tokens"


@pytest.mark.parametrize(
    ("answer", "reason", "detail"),
    [
        # B33: the usage says that ids were swallowed, all or some
        (chat(ids=[11, 12, 13], completion=5), "ids_missing", "3 of 5"),
        (chat(token_ids=None), "ids_missing", "0 of 2"),
        (chat() | {"prompt_token_ids": None}, "prompt_ids_missing", "no prompt ids"),
        (chat() | {"usage": None}, "usage_missing", "no usage"),
        (chat() | {"usage": {"prompt_tokens": 3}}, "usage_missing", "no usage"),
        (chat() | {"usage": {"prompt_tokens": True, "completion_tokens": 2}}, "usage_missing", "no usage"),
        (chat(completion=1), "usage_mismatch", "2 generated ids, 1 tokens"),
        (chat() | {"usage": {"prompt_tokens": 4, "completion_tokens": 2}}, "usage_mismatch", "3 prompt ids, 4 tokens"),
        # B34: never padded
        (chat(ids=[11, 12, 13], log_probs=[-0.5]), "log_prob_missing", "1 of 3"),
        (chat(logprobs=None), "log_prob_missing", "0 of 2"),
        (chat(log_probs=[-0.5, None]), "log_prob_missing", "generated token 1"),
        (chat(log_probs=[-0.5, "x"]), "log_prob_missing", "generated token 1"),
        (chat(log_probs=[-9999.0, -0.5]), "log_prob_missing", "generated token 0"),
        # B35: classified, never cut
        (chat(log_probs=[-0.1, -0.2, -0.3]), "length_mismatch", "trailing: more log probs than ids; 3 log probs for 2"),
        (
            chat(ids=[5, 6, 7], log_probs=[-1, -1, -1], stop_reason=6),
            "length_mismatch",
            "past_stop: 3 ids, the stop token 6 is the one at index 1",
        ),
        (chat(log_probs=[-0.5, math.nan]), "non_finite_log_prob", "index 1"),
        (chat(log_probs=[-0.5, 10**400]), "non_finite_log_prob", "index 1"),
        (chat(ids=[5, -6]), "malformed_tokens", "-6"),
        (chat(ids=[5, 2**64]), "malformed_tokens", "2**64"),
        (chat(ids=[5, 6.5]), "malformed_tokens", "6.5"),
        (chat(token_ids="5,6"), "malformed_tokens", "str"),
        (chat() | {"prompt_token_ids": {"a": 1}}, "malformed_tokens", "prompt ids"),
        (chat() | {"choices": chat()["choices"] * 2}, "several_choices", "2 choices"),
        (chat() | {"choices": []}, "engine_reports_no_tokens", "no choice"),
        (chat() | {"choices": None}, "engine_reports_no_tokens", "no choice"),
    ],
)
def test_what_does_not_add_up_is_not_used(answer: dict[str, Any], reason: str, detail: str) -> None:
    assert refused(tokens_of_chat_answer(answer))[0] == reason
    assert detail in refused(tokens_of_chat_answer(answer))[1]


@pytest.mark.parametrize("answer", [{}, {"choices": [None]}, {"choices": [{"message": 3, "logprobs": [1]}]}])
def test_an_answer_of_any_shape_is_read_without_an_error(answer: dict[str, Any]) -> None:
    refused(tokens_of_chat_answer(answer))
    refused(tokens_of_generate_answer(answer))


def test_an_empty_generation_is_a_whole_one() -> None:
    assert exact(tokens_of_chat_answer(chat(ids=[], log_probs=[]))).generation_token_ids.size == 0
    assert exact(tokens_of_chat_answer(chat(ids=[], log_probs=[], token_ids=None))).ended_by == ""


def test_ids_beyond_32_bits_are_kept_exactly() -> None:
    tokens = exact(tokens_of_chat_answer(chat(ids=[2**40, 2**64 - 1])))
    assert tokens.generation_token_ids.tolist() == [2**40, 2**64 - 1]


def test_placeholders_of_an_image_stay_as_the_engine_expanded_them() -> None:
    # B38: the template's text has one placeholder, the engine's prompt has one id a cell of the grid
    tokens = exact(tokens_of_chat_answer(chat(prompt=[1, 9, 9, 9, 2])))
    assert tokens.prompt_token_ids.tolist() == [1, 9, 9, 9, 2]


MESSAGE = {"prompt_token_ids": [1, 2], "generation_token_ids": [5, 6], "generation_log_probs": [-0.5, -0.25]}


def test_a_patched_workers_message_carries_its_tokens() -> None:
    tokens = exact(tokens_of_chat_answer(patched(MESSAGE)))
    assert tokens.prompt_token_ids.tolist() == [1, 2]
    assert tokens.generation_token_ids.tolist() == [5, 6]
    assert tokens.generation_log_probs.tolist() == [-0.5, -0.25]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (MESSAGE | {"prompt_token_ids": None}, "prompt_ids_missing"),
        (MESSAGE | {"generation_token_ids": None}, "ids_missing"),
        (MESSAGE | {"generation_log_probs": None}, "log_prob_missing"),
        (MESSAGE | {"generation_log_probs": [-0.5, None]}, "log_prob_missing"),
        (MESSAGE | {"generation_log_probs": [-0.5, -0.25, -0.125]}, "length_mismatch"),
    ],
)
def test_a_message_that_carries_half_of_it_is_not_used(message: dict[str, Any], reason: str) -> None:
    assert refused(tokens_of_chat_answer(patched(message)))[0] == reason


def test_two_carriers_have_to_agree() -> None:
    both = chat(ids=[5, 6], prompt=[1, 2], message={"role": "assistant", **MESSAGE})
    assert exact(tokens_of_chat_answer(both)).generation_token_ids.tolist() == [5, 6]
    both["choices"][0]["token_ids"] = [5, 7]
    reason, detail = refused(tokens_of_chat_answer(both))
    assert (reason, "generated ids" in detail) == ("several_carriers", True)
    both["choices"][0]["token_ids"] = [5, 6]
    both["prompt_token_ids"] = [1, 3]
    assert refused(tokens_of_chat_answer(both))[0] == "several_carriers"


def test_ids_in_place_of_the_log_probs_text_are_ids() -> None:
    answer = chat(token_ids=None, log_probs=())
    named = [{"token": f"token_id:{number}", "logprob": -0.5} for number in (5, 6)]
    answer["choices"][0]["logprobs"] = {"content": named}
    assert exact(tokens_of_chat_answer(answer)).generation_token_ids.tolist() == [5, 6]
    named[1] = {"token": "token_id:six", "logprob": -0.5}
    assert refused(tokens_of_chat_answer(answer))[0] == "ids_missing"


def test_log_probs_that_name_other_tokens_are_not_taken_for_these() -> None:
    answer = chat(ids=[5, 6])
    answer["choices"][0]["logprobs"]["content"] = [
        {"token": "token_id:6", "logprob": -0.5},
        {"token": "token_id:5", "logprob": -0.25},
    ]
    reason, detail = refused(tokens_of_chat_answer(answer))
    assert (reason, "log prob 0 is of token 6, the id there is 5" in detail) == ("length_mismatch", True)


@pytest.mark.parametrize(
    ("choice", "asked", "expected"),
    [
        ({"finish_reason": "stop"}, RequestFacts(), "eos"),
        ({"finish_reason": "stop", "stop_reason": 6}, RequestFacts(), "eos"),
        ({"finish_reason": "stop", "stop_reason": 6}, RequestFacts(frozenset({6})), "stop_sequence"),
        ({"finish_reason": "stop", "stop_reason": 99}, RequestFacts(), ""),
        ({"finish_reason": "stop", "stop_reason": "END"}, RequestFacts(), "stop_sequence"),
        ({"finish_reason": "tool_calls", "stop_reason": 6}, RequestFacts(), "eos"),
        ({"finish_reason": "tool_calls"}, RequestFacts(), ""),
        ({"finish_reason": "length"}, RequestFacts(), "length"),
        ({"finish_reason": "abort"}, RequestFacts(), ""),
        ({"finish_reason": "stop", "matched_stop": 6}, RequestFacts(), "eos"),
        ({"finish_reason": "stop", "matched_stop": "END"}, RequestFacts(), "stop_sequence"),
        ({"finish_reason": None}, RequestFacts(), ""),
    ],
)
def test_how_a_generation_ended(choice: dict[str, Any], asked: RequestFacts, expected: str) -> None:
    assert exact(tokens_of_chat_answer(chat(**choice), asked)).ended_by == expected


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([{"version": 3, "start": 0, "end": 1}, {"version": 4, "start": 1, "end": 2}], [(3, 0, 1), (4, 1, 2)]),
        ([{"version": 3, "start": 0, "end": 3}], []),
        ([{"version": 3, "start": 1, "end": 2}, {"version": 4, "start": 0, "end": 1}], []),
        ([{"version": 3, "start": 0}], []),
        ("v3", []),
        (None, []),
    ],
)
def test_spans_of_weights_are_taken_when_they_fit(spans: Any, expected: list[tuple[Any, int, int]]) -> None:
    tokens = exact(tokens_of_chat_answer(chat(weight_versions=spans)))
    assert [(span.version, span.start, span.end) for span in tokens.weight_spans] == expected


def test_experts_that_do_not_fit_are_dropped_and_the_call_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    rows = [[[1, 2]]] * 4  # B36: five tokens, no pass follows the last
    assert exact(tokens_of_chat_answer(chat(routed_experts=rows))).routed_experts == rows
    assert not caplog.records
    tokens = exact(tokens_of_chat_answer(chat(routed_experts=rows[:2])))
    assert tokens.routed_experts is None
    assert tokens.generation_token_ids.tolist() == [5, 6]
    assert "2 rows for 5 tokens" in caplog.text
    later = exact(tokens_of_chat_answer(chat(routed_experts=rows[:2]), RequestFacts(experts_start=2)))
    assert later.routed_experts == rows[:2]


def test_experts_in_the_message_are_a_patched_workers() -> None:
    rows = [[[1, 2]]] * 4
    answer = chat()
    answer["choices"][0]["message"]["routed_experts"] = rows
    assert exact(tokens_of_chat_answer(answer)).routed_experts is rows
    both = chat(routed_experts=[[[3, 4]]] * 4)
    both["choices"][0]["message"]["routed_experts"] = rows
    assert exact(tokens_of_chat_answer(both)).routed_experts == [[[3, 4]]] * 4


def test_an_answer_is_not_changed_by_being_read() -> None:
    answer = recorded("chat_tokens")
    before = copy.deepcopy(answer)
    tokens_of_chat_answer(answer)
    assert answer == before


def sglang(**meta: Any) -> dict[str, Any]:
    return {
        "text": "ab",
        "output_ids": [5, 6],
        "prompt_token_ids": [1, 2, 3],
        "meta_info": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "output_token_logprobs": [[-0.5, 5, None], [-0.25, 6, None]],
            "finish_reason": {"type": "stop", "matched": 6},
            "weight_version": "v7",
            **meta,
        },
    }


def test_sglangs_own_answer_is_read_where_it_says_enough() -> None:
    tokens = exact(tokens_of_generate_answer(sglang()))
    assert tokens.generation_token_ids.tolist() == [5, 6]
    assert tokens.generation_log_probs.tolist() == [-0.5, -0.25]
    assert (tokens.ended_by, tokens.weight_spans) == ("eos", (WeightSpan("v7", 0, 2),))
    without_ids = {name: value for name, value in sglang().items() if name != "output_ids"}
    assert exact(tokens_of_generate_answer(without_ids)).generation_token_ids.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (sglang(output_token_logprobs=[[-0.5, 5, None], [-0.25, 7, None]]), "length_mismatch"),
        (sglang(output_token_logprobs=[[-0.5, 5, None]]), "log_prob_missing"),
        (sglang(output_token_logprobs=[[-0.5, 5, None], None]), "log_prob_missing"),
        (sglang(completion_tokens=4), "ids_missing"),
        (sglang(completion_tokens=None), "usage_missing"),
        (sglang() | {"prompt_token_ids": None}, "prompt_ids_missing"),
    ],
)
def test_sglangs_answer_is_held_to_the_same_counts(answer: dict[str, Any], reason: str) -> None:
    assert refused(tokens_of_generate_answer(answer))[0] == reason
