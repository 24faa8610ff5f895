from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gym_ray.model_server.external.reserved import (
    RESERVED_IN_ANSWERS,
    shown_refusal,
    take_coordinates,
    without_reserved,
)

NAMES = st.sampled_from([*sorted(RESERVED_IN_ANSWERS), "content", "choices", "message", "x"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(alphabet="abc"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


def names_in(value: object) -> set[str]:
    if isinstance(value, dict):
        return value.keys() | set().union(*map(names_in, value.values()))
    return set().union(*map(names_in, value)) if isinstance(value, list) else set()


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_no_reserved_member_is_left_at_any_depth(answer: dict[str, Any]) -> None:
    parked = copy.deepcopy(answer.get("ng_commit_coords"))
    others = names_in(without_reserved_anywhere(answer))
    assert take_coordinates(answer) == parked
    assert names_in(answer) == others
    assert not names_in(answer) & RESERVED_IN_ANSWERS


def without_reserved_anywhere(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: without_reserved_anywhere(part) for name, part in value.items() if name not in RESERVED_IN_ANSWERS
        }
    return [without_reserved_anywhere(part) for part in value] if isinstance(value, list) else value


def test_any_depth_can_be_stripped() -> None:
    deep: Any = {"token_ids": [1]}
    for _ in range(5000):
        deep = [deep]
    answer = {"x": deep}
    take_coordinates(answer)
    while isinstance(deep, list):
        (deep,) = deep
    assert deep == {}


def test_log_probabilities_of_choices_go_and_words_stay() -> None:
    words = "my ng_capture says: logprobs, token_ids"
    answer = {"choices": [{"logprobs": {}, "message": {"content": words}}, "no object"], "logprobs": "of nobody"}
    assert take_coordinates(answer) is None
    assert answer == {"choices": [{"message": {"content": words}}, "no object"], "logprobs": "of nobody"}
    assert take_coordinates({"choices": 7}) is None


def test_a_request_keeps_its_own_members() -> None:
    body = {"model": "m", "ng_capture": 1, "ng_commit_coords": 2, "required_prefix_token_ids": [3], "logprobs": True}
    assert without_reserved(body) == {"model": "m", "logprobs": True}
    assert without_reserved({"offload_params": {"a": 1}}) == {"offload_params": {"a": 1}}
    assert without_reserved({"offload_params": {"a": 1, "ng_capture": 2}}) == {"offload_params": {"a": 1}}
    assert without_reserved({"offload_params": 5}) == {"offload_params": 5}
    assert body["ng_capture"] == 1


def test_a_refusal_is_shown_as_it_is_unless_it_names_what_is_internal() -> None:
    plain = b'{"error": {"message": "too long"}}'
    assert shown_refusal(400, plain) is plain
    member = {"error": {"message": "bad", "input": {"ng_capture": {}, "x": 1}}}
    assert json.loads(shown_refusal(422, json.dumps(member).encode())) == {
        "error": {"message": "bad", "input": {"x": 1}}
    }
    for said in (b"ng_capture?", b'{"detail": "ng_capture is unknown"}', b'["ng_capture"]'):
        shown = json.loads(shown_refusal(422, said))
        assert shown["error"]["message"] == (
            "the inference worker answered 422; its words are in the log of the model server"
        )
        assert (shown["error"]["type"], shown["error"]["code"]) == ("invalid_request_error", 422)
