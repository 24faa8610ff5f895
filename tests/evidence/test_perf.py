from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gym_ray.evidence.perf import rollout_perf

SERVER = {"type": "responses_api_models", "name": "policy"}


def call(call_id: str | None, response: str | None = None, **tokens: int) -> dict[str, Any]:
    stats = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "total_tokens", "cached_tokens")
    return {
        "model_call_id": call_id,
        "response_metadata": {"response_id": response, "model_ref": SERVER},
        "token_stats": {name: tokens.get(name) for name in stats},
    }


def ref(call_id: str | None = None, response: str | None = None) -> dict[str, Any]:
    return {"model_call_id": call_id, "model_ref": SERVER if response else None, "response_id": response}


def invocation(name: str, *refs: dict[str, Any]) -> dict[str, Any]:
    return {"invocation_id": name, "model_calls": list(refs)}


def trajectory(invocations: list[Any], calls: list[Any], turns: str = "", tools: str = "") -> dict[str, Any]:
    return {
        "invocations": invocations,
        "model_calls": calls,
        "turns": [{"invocation_id": name} for name in turns],
        "tool_calls": [{"invocation_id": name} for name in tools],
    }


def test_without_an_invocation_there_are_no_figures() -> None:
    assert rollout_perf(trajectory([], [call("c0", prompt_tokens=1)]), 5.0) is None


def test_an_invocation_counts_its_turns_else_its_calls_else_one() -> None:
    invocations = [invocation("a", ref("c0"), ref("c1")), invocation("b", ref("c2"), ref("c3")), invocation("c")]
    figures = rollout_perf(trajectory(invocations, [call(f"c{n}") for n in range(4)], turns="aaa"), None)
    assert figures == {"num_turns": 3 + 2 + 1, "num_tool_calls": 0, "token_observability_coverage": 4 / 6}


def test_turns_and_tools_of_nobody_that_is_listed_do_not_count() -> None:
    figures = rollout_perf(trajectory([invocation("a")], [], turns="zzz", tools="azaz"), None)
    assert figures == {"num_turns": 1, "num_tool_calls": 2, "token_observability_coverage": 0.0}


def test_only_owned_calls_count_and_each_counts_once() -> None:
    calls = [
        call("mine", "r0", prompt_tokens=100, completion_tokens=10, cached_tokens=5, total_tokens=110),
        call("judge", "r1", prompt_tokens=7000, completion_tokens=7000, reasoning_tokens=7000),
        call("x", "dup", prompt_tokens=7000),
        call("y", "dup", prompt_tokens=7000),
    ]
    refs = [ref("mine"), ref(None, "r0"), ref(None, "dup"), ref("gone"), ref("judge", "r9")]
    figures = rollout_perf(trajectory([invocation("a", *refs), invocation("b", ref("mine"))], calls), 12.5)
    assert figures == {
        "num_turns": 2,
        "num_tool_calls": 0,
        "token_observability_coverage": 0.5,
        "prompt_tokens": 100,
        "cached_prompt_tokens": 5,
        "completion_tokens": 10,
        "total_latency_ms": 12.5,
    }


def test_reported_zeros_are_figures_and_a_latency_of_zero_is_one() -> None:
    stats = dict.fromkeys(("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens"), 0)
    figures = rollout_perf(trajectory([invocation("a", ref("c0"))], [call("c0", **stats)]), 0.0)
    assert figures is not None
    assert list(figures) == [
        "num_turns",
        "num_tool_calls",
        "token_observability_coverage",
        "prompt_tokens",
        "cached_prompt_tokens",
        "completion_tokens",
        "reasoning_tokens",
        "total_latency_ms",
    ]
    assert list(figures.values()) == [1, 0, 1.0, 0, 0, 0, 0, 0.0]


def test_coverage_is_never_more_than_whole() -> None:
    calls = [call(f"c{n}") for n in range(5)]
    figures = rollout_perf(trajectory([invocation("a", *(ref(f"c{n}") for n in range(5)))], calls, turns="a"), None)
    assert figures == {"num_turns": 1, "num_tool_calls": 0, "token_observability_coverage": 1.0}


ids = st.sampled_from(["c0", "c1", "c2", None])
answers = st.sampled_from(["r0", "r1", None])
counts = st.one_of(st.none(), st.integers(0, 50))


@given(
    st.lists(st.tuples(ids, answers, counts), max_size=5),
    st.lists(st.lists(st.tuples(ids, answers).filter(any), max_size=4), min_size=1, max_size=3),
    st.lists(st.sampled_from(["0", "1", "z"]), max_size=5),
)
def test_it_adds_up_what_comparing_everything_finds(calls: list[Any], refs: list[Any], turns: list[str]) -> None:
    projected = [call(name, answer, **({} if n is None else {"prompt_tokens": n})) for name, answer, n in calls]
    invocations = [invocation(str(n), *(ref(*one) for one in mine)) for n, mine in enumerate(refs)]
    whole = trajectory(invocations, projected, turns="".join(turns))
    before = copy.deepcopy(whole)
    figures = rollout_perf(whole, None)
    assert figures is not None
    assert whole == before

    taken: list[int] = []
    expected_turns = 0
    for number, mine in enumerate(refs):
        had = len(taken)
        for name, answer in mine:
            fits = [
                place
                for place, (other, other_answer, _) in enumerate(calls)
                if (name is None or other == name) and (answer is None or other_answer == answer)
            ]
            if len(fits) == 1 and fits[0] not in taken:
                taken.append(fits[0])
        expected_turns += turns.count(str(number)) or len(taken) - had or 1
    known = [calls[place][2] for place in taken if calls[place][2] is not None]
    assert figures["num_turns"] == expected_turns
    assert figures["token_observability_coverage"] == min(1, len(taken) / expected_turns)
    assert figures.get("prompt_tokens") == (sum(known) if known else None)
