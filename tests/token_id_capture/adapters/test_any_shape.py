"""No answer of an engine, however odd, makes its reading fail: it has tokens, or a reason why not."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gym_ray.token_id_capture.adapters.request_facts import RequestFacts
from gym_ray.token_id_capture.adapters.vllm import tokens_of_chat_answer, tokens_of_generate_answer
from gym_ray.token_id_capture.adapters.vllm_stream import ChatTokenStream
from gym_ray.token_id_capture.exact_tokens import ExactTokens, TokenOutcome, Untrainable

ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
IDS = st.lists(st.integers(0, 9), max_size=3) | ODD
LOG_PROBS = (
    st.lists(
        st.fixed_dictionaries({}, optional={"logprob": st.just(-0.5) | ODD, "token": st.text(), "token_id": ODD}),
        max_size=3,
    )
    | ODD
)


def some(**members: Any) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional=members) | ODD


MESSAGE = some(prompt_token_ids=IDS, generation_token_ids=IDS, generation_log_probs=st.lists(ODD, max_size=3) | ODD)
CHOICE = some(
    index=st.sampled_from([0, 1, None]) | ODD,
    message=MESSAGE,
    delta=MESSAGE,
    token_ids=IDS,
    logprobs=some(content=LOG_PROBS),
    finish_reason=st.sampled_from(["stop", "length", "tool_calls"]) | ODD,
    stop_reason=ODD,
    routed_experts=ODD,
    weight_versions=st.lists(some(version=ODD, start=ODD, end=ODD), max_size=2) | ODD,
)
ANSWER = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(CHOICE, max_size=2) | ODD,
        "prompt_token_ids": IDS,
        "usage": some(prompt_tokens=st.integers(0, 3) | ODD, completion_tokens=st.integers(0, 3) | ODD),
        "meta_info": some(
            output_token_logprobs=st.lists(ODD, max_size=3) | ODD,
            completion_tokens=ODD,
            prompt_tokens=ODD,
            finish_reason=some(type=ODD, matched=ODD),
            weight_version=ODD,
        ),
        "output_ids": IDS,
    },
)


def checked(outcome: TokenOutcome) -> None:
    if isinstance(outcome, ExactTokens):
        assert outcome.generation_token_ids.size == outcome.generation_log_probs.size
    else:
        assert isinstance(outcome, Untrainable)
        assert outcome.reason


@given(ANSWER)
def test_whole_answers(answer: dict[str, Any]) -> None:
    checked(tokens_of_chat_answer(answer))
    checked(tokens_of_generate_answer(answer))
    RequestFacts.of(answer)


@given(st.lists(ANSWER, max_size=4))
def test_streams(chunks: list[dict[str, Any]]) -> None:
    stream = ChatTokenStream()
    for chunk in chunks:
        stream.feed(chunk)
        checked(stream.outcome())
