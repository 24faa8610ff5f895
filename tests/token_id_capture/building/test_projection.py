from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray import exact_json
from gym_ray.testing.token_rollouts import TokenRollout
from gym_ray.token_id_capture.builder import run_builder
from gym_ray.token_id_capture.building import projection
from gym_ray.token_id_capture.building.chains import Chain
from gym_ray.token_id_capture.building.projection import (
    assert_prefix_contiguity,
    iter_projected_output_json,
    project_chain_to_output_items,
    project_main_chain_response,
)


def chain_of(rollout: TokenRollout) -> Chain:
    return run_builder(rollout.packed()).chains[0]


def two_turns(**members: Any) -> TokenRollout:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2, 3], [10, 11])
    rollout.call("c2", [4, 5], [12], "c1", **members)
    return rollout


def message(text: str, **members: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text, **members}


def test_carriers_hold_the_running_prompt() -> None:
    first, second = project_chain_to_output_items(chain_of(two_turns()))
    assert first == message(
        "said by c1", prompt_token_ids=[1, 2, 3], generation_token_ids=[10, 11], generation_log_probs=[-0.5, -0.25]
    )
    assert second["prompt_token_ids"] == [1, 2, 3, 10, 11, 4, 5]


def test_stray_token_fields_of_other_items_are_left_out() -> None:
    items = [message("a", generation_token_ids=[9], routed_experts=1), message("b")]
    _, other, carrier = project_chain_to_output_items(chain_of(two_turns(output_items=items, token_item_index=1)))
    assert other == message("a")
    assert carrier["generation_token_ids"] == [12]


def test_a_call_without_content_becomes_a_bare_message() -> None:
    found = project_chain_to_output_items(chain_of(two_turns(output_items=[], token_item_index=None)))
    assert found[1] == {
        "type": "message",
        "prompt_token_ids": [1, 2, 3, 10, 11, 4, 5],
        "generation_token_ids": [12],
        "generation_log_probs": [-0.5],
    }


def test_records_are_not_changed_by_a_projection() -> None:
    entries = two_turns().packed()
    before = [entry.entry() for entry in entries]
    project_chain_to_output_items(run_builder(entries).chains[0])
    assert [entry.entry() for entry in entries] == before


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2**64 - 1), max_size=5),
            st.lists(st.integers(0, 2**32), min_size=1, max_size=5),
            st.sampled_from([[], [{}], [message("é\n")], [message("a"), {"type": "reasoning", "summary": []}]]),
            st.sampled_from([None, [[1, 2]], {"layers": 0.5}]),
            st.floats(-50, 0, width=32) | st.floats(-50, 0),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_the_streamed_json_is_that_of_the_items(calls: list[Any]) -> None:
    rollout = TokenRollout()
    parent = None
    for number, (added, generation, items, experts, log_prob) in enumerate(calls):
        rollout.call(
            f"c{number}",
            added,
            generation,
            parent,
            output_items=items,
            token_item_index=0 if items else None,
            routed_experts=experts,
            generation_log_probs=[log_prob] * len(generation),
        )
        parent = f"c{number}"
    chain = chain_of(rollout)
    assert b"".join(iter_projected_output_json(chain)) == exact_json.dumps(project_chain_to_output_items(chain))


def test_content_that_needs_the_exact_encoder_is_streamed_as_well() -> None:
    chain = chain_of(two_turns(output_items=[message("cut \ud83d", seed=2**70)]))
    text = b"".join(iter_projected_output_json(chain))
    assert exact_json.loads(text) == project_chain_to_output_items(chain)


def test_pieces_stay_small_however_long_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "_TOKENS_A_PIECE", 50)
    monkeypatch.setattr(projection, "_PIECE_BYTES", 200)
    rollout = TokenRollout()
    parent = None
    for turn in range(30):
        rollout.call(f"c{turn}", range(turn, turn + 60), [turn], parent)
        parent = f"c{turn}"
    chain = chain_of(rollout)
    pieces = list(iter_projected_output_json(chain))
    assert max(map(len, pieces)) < 600
    assert orjson.loads(b"".join(pieces)) == project_chain_to_output_items(chain)


def test_a_response_holds_the_main_chain_and_counts_its_tokens() -> None:
    response = project_main_chain_response("r0", run_builder(two_turns().packed()), model="m")
    assert {name: response[name] for name in ("id", "model", "object", "usage")} == {
        "id": "proj-r0",
        "model": "m",
        "object": "response",
        "usage": {"input_tokens": 3, "output_tokens": 3},
    }
    assert_prefix_contiguity(response)


def test_there_is_no_response_without_a_generation() -> None:
    with pytest.raises(ValueError, match="no chain was built"):
        project_main_chain_response("r0", run_builder([]))
    rollout = TokenRollout()
    rollout.call("c1", [1], [])
    with pytest.raises(ValueError, match="'r0': nothing was generated on the chain 'req-0'"):
        project_main_chain_response("r0", run_builder(rollout.packed(), builder="per_request"))


def test_single_requests_do_not_go_into_one_response() -> None:
    with pytest.raises(ValueError, match="'per_request' made 2 chains"):
        project_main_chain_response("r0", run_builder(two_turns().packed(), builder="per_request"))
    rollout = TokenRollout()
    rollout.call("c1", [1], [2])
    out = run_builder(rollout.packed(), builder="per_request")
    assert project_main_chain_response("r0", out)["usage"] == {"input_tokens": 1, "output_tokens": 1}


def test_a_gap_between_carriers_is_named_by_its_place() -> None:
    response = {"output": [{"prompt_token_ids": [1], "generation_token_ids": [2]}, {"x": 1}, "text"]}
    assert_prefix_contiguity(response)
    response["output"].append({"prompt_token_ids": [1, 3], "generation_token_ids": [4]})
    with pytest.raises(AssertionError, match="output item 3: its prompt of 2 tokens does not start with the 2 tokens"):
        assert_prefix_contiguity(response)
