from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.testing.token_rollouts import TokenRollout
from gym_ray.token_id_capture.builder import BuildOutput, run_builder
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.rows import TrainingRow, training_rows


def paths(out: BuildOutput) -> dict[str, list[str]]:
    return {chain.chain_id: [link.model_call_id for link in chain.links] for chain in out.chains}


def state(out: BuildOutput) -> tuple[object, ...]:
    notes = {
        name: sorted(value) if isinstance(value, list) else value
        for name, value in dataclasses.asdict(out.notes).items()
    }
    chains = [(chain.chain_id, chain.token_ids().tolist(), chain.links[-1].model_call_id) for chain in out.chains]
    return chains, paths(out), sorted(out.quarantined), notes, out.doubts


def two_turns(**options: Any) -> TokenRollout:
    rollout = TokenRollout(**options)
    rollout.call("c1", [1, 2, 3], [10, 11])
    rollout.call("c2", [4, 5], [12], "c1")
    return rollout


# --- any rollout, honest or damaged ---------------------------------------------------------------------------------

CALLS = st.lists(
    st.tuples(
        st.integers(0, 100),  # which earlier call it continues, or none
        st.lists(st.integers(1, 4), max_size=3),
        st.lists(st.integers(1, 4), max_size=3),
        st.booleans(),  # whether it is stored as a delta
    ),
    min_size=1,
    max_size=9,
)
ODD_TOKENS = st.sampled_from([1, 4, 9, 2**32, 2**64 - 1])


def told(calls: list[tuple[int, list[int], list[int], bool]], *, chain_hashes: bool) -> TokenRollout:
    rollout = TokenRollout(chain_hashes=chain_hashes)
    ids: list[str] = []
    for number, (pick, added, generation, delta) in enumerate(calls):
        parent = [None, *ids][pick % (len(ids) + 1)]
        call_id = f"c{number}"
        sampled = [100 * (number // 2 + 1) + token for token in generation]  # so that some retries are equal
        rollout.call(call_id, added, sampled, parent, delta=delta, created_at=0.5 * (number // 2))
        ids.append(call_id)
    return rollout


def assert_true(row: TrainingRow, rollout: TokenRollout) -> None:
    """What a row trains on is what the policy sampled, all of it, in the context that the policy saw."""
    last = row.spans[-1].model_call_id
    assert row.token_ids.tolist() == rollout.sequences[last]
    policy = [False] * row.token_ids.size
    for span in row.spans:
        policy[span.start : span.end] = [span.kind == "policy"] * (span.end - span.start)
    assert policy == rollout.sampled[last]


@given(CALLS, st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_an_honest_rollout_is_built_as_it_was(
    calls: list[Any], chain_hashes: bool, one_buffer: bool, rng: random.Random
) -> None:
    rollout = told(calls, chain_hashes=chain_hashes)
    entries = rollout.packed_in_one_buffer() if one_buffer else rollout.packed()
    out = run_builder(entries)
    for row in training_rows("r0", out, branches=True):
        assert_true(row, rollout)
    generating = {call_id for call_id, record in rollout.records.items() if record["generation_token_ids"]}
    in_chains = {call_id for path in paths(out).values() for call_id in path}
    assert in_chains <= generating
    assert out.notes.generated_tokens_captured == sum(
        len(rollout.records[call_id]["generation_token_ids"]) for call_id in generating
    )
    for call_id in generating - in_chains:  # only a retry that lost, or what went on from one
        while call_id not in out.quarantined:
            call_id = rollout.records[call_id]["parent_call_id"]
    assert set(out.notes.empty_generation_calls) == rollout.records.keys() - generating
    expected = state(out)
    rng.shuffle(entries)
    assert state(run_builder(entries)) == expected
    assert state(run_builder([entry.entry() for entry in entries])) == expected


def damage(record: dict[str, Any], how: str, token: int, others: list[dict[str, Any]], rollout: TokenRollout) -> None:
    """Do to one record what a stale writer, a bad disk or a forger would."""
    ids = record["generation_token_ids" if how == "generation" else "prompt_token_ids"]
    if how == "digest":
        record["digest"] = others[-1]["digest"]
    elif how == "length":
        record["cum_len"] += 1
    elif how == "chain_hash":
        record.setdefault("gym_ray", {})["chain_hash"] = "0" * 64
    elif how == "parent" and record["parent_resolution"] == "resolved":
        whole = rollout.sequences[record["model_call_id"]]
        strangers = [o for o in others if whole[: len(seq := rollout.sequences[o["model_call_id"]])] != seq]
        record["parent_call_id"] = strangers[0]["model_call_id"] if strangers else "unknown"
    elif how == "no_decision" and not record["prompt_is_delta"]:
        record["parent_resolution"] = record["parent_call_id"] = None
    elif ids:
        ids[token % len(ids)] = token


@settings(max_examples=300)
@given(
    CALLS,
    st.booleans(),
    st.lists(
        st.tuples(
            st.integers(0, 8),
            st.sampled_from(
                ["digest", "length", "chain_hash", "parent", "no_decision", "prompt", "generation", "lost", "twice"]
            ),
            ODD_TOKENS,
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 9),
)
def test_a_damaged_rollout_never_gives_an_unmasked_wrong_row(
    calls: list[Any], chain_hashes: bool, damages: list[tuple[int, str, int]], terminal: int
) -> None:
    rollout = told(calls, chain_hashes=chain_hashes)
    records = list(rollout.records.values())
    for pick, how, token in damages:
        if not records:
            break
        record = records[pick % len(records)]
        if how == "lost":
            records.remove(record)
        elif how == "twice":
            records.append({**record, "generation_token_ids": [token] * len(record["generation_token_ids"])})
        else:
            damage(record, how, token, records, rollout)
    out = run_builder([PackedEntry.of_json(record) for record in records], terminal_call_id=f"c{terminal}")
    for row in training_rows("r0", out, branches=True):
        if not row.mask_sample:
            assert_true(row, rollout)
    if out.notes.terminal_chain == "delivered":  # then nothing else masks the main chain
        row = training_rows("r0", out)[0]
        assert not row.mask_sample
        assert row.spans[-1].model_call_id == f"c{terminal}"


# --- W28, W40, B106-B109 -------------------------------------------------------------------------------------------


def test_a_first_call_made_again_is_one_root() -> None:
    rollout = TokenRollout()
    rollout.call("ra", [1, 2], [7])
    rollout.call("rb", [1, 2], [8])
    rollout.call("rc", [9], [5], "rb")
    out = run_builder(rollout.packed())
    assert paths(out) == {"main": ["rb", "rc"]}
    assert (out.notes.roots, out.quarantined, out.notes.unresolved_retries) == (1, ["ra"], [])


def test_equal_retries_are_interchangeable() -> None:
    rollout = two_turns()
    rollout.call("c2x", [4, 5], [12], "c1")
    out = run_builder(rollout.packed())
    assert paths(out) == {"main": ["c1", "c2"]}
    assert (out.quarantined, out.notes.unresolved_retries) == (["c2x"], [])


def test_one_different_retry_among_equal_ones_settles_nothing() -> None:
    rollout = two_turns()
    rollout.call("c2x", [4, 5], [12], "c1")
    rollout.call("c2y", [4, 5], [13], "c1")
    out = run_builder(rollout.packed())
    assert out.quarantined == ["c2x", "c2y"]
    assert out.notes.unresolved_retries == ["c2", "c2x", "c2y"]


def test_a_named_end_settles_a_retry() -> None:
    rollout = two_turns()
    rollout.call("c2b", [4, 5], [99], "c1")
    out = run_builder(rollout.packed(), terminal_call_id="c2b")
    assert paths(out) == {"main": ["c1", "c2b"]}
    assert (out.quarantined, out.notes.unresolved_retries, out.notes.terminal_chain) == (["c2"], [], "delivered")
    assert run_builder(rollout.packed(), terminal_call_id="elsewhere").notes.unresolved_retries == ["c2", "c2b"]


def test_prompts_of_one_length_that_differ_are_no_retries() -> None:
    rollout = two_turns()
    rollout.call("f2", [4, 6], [12], "c1")
    out = run_builder(rollout.packed())
    assert (out.quarantined, len(out.chains)) == ([], 2)


def test_the_branch_with_most_generated_tokens_is_main() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2, 3], [10])
    rollout.call("short", [4], [20], "c1")
    rollout.call("long", [4, 5, 6], [21, 22], "c1")
    assert paths(run_builder(rollout.packed())) == {"branch-0": ["c1", "short"], "main": ["c1", "long"]}


def test_the_root_captured_first_is_main_however_little_it_generated() -> None:
    rollout = TokenRollout()
    rollout.call("late", [1], [10, 11, 12], created_at=2.0)
    rollout.call("early", [1, 2, 3], [10], created_at=1.0)
    rollout.call("unknown", [7, 8], [9], created_at=float("nan"))
    entries = rollout.packed()
    assert paths(run_builder(entries))["main"] == ["early"]
    assert paths(run_builder(entries[::-1]))["main"] == ["early"]


def test_branches_beyond_a_named_end_are_cut_and_others_kept() -> None:
    rollout = two_turns()
    rollout.call("c3", [6], [13], "c2")
    rollout.call("f3", [7], [14], "c2")
    rollout.call("f2", [8], [15], "c1")
    out = run_builder(rollout.packed(), terminal_call_id="c2")
    assert paths(out) == {"main": ["c1", "c2"], "branch-0": ["c1", "f2"]}
    assert out.chains[0].chain_id == "main"


def test_an_end_behind_a_boundary_is_broken() -> None:
    rollout = two_turns(deltas=False)
    rollout.records["c1"]["parent_resolution"] = "unresolved"
    out = run_builder(rollout.packed(), terminal_call_id="c2")
    assert (out.notes.terminal_chain, out.doubts) == ("broken", {"c1": "parent_unresolved"})


def test_an_end_on_a_line_that_lost_against_a_retry_cannot_be() -> None:
    """What leads to a named end counts, so nothing on its path is ever left aside."""
    rollout = TokenRollout()
    rollout.call("ra", [1], [2])
    rollout.call("rb", [1], [3])
    rollout.call("a2", [4], [5], "ra")
    rollout.call("b2", [4], [6], "rb")
    out = run_builder(rollout.packed(), terminal_call_id="b2")
    assert (paths(out), out.quarantined) == ({"main": ["rb", "b2"]}, ["ra"])


# --- records that are no good --------------------------------------------------------------------------------------


def test_copies_of_a_call_with_other_tokens_are_a_conflict_that_masks() -> None:
    rollout = two_turns()
    first, second = rollout.packed()
    other = TokenRollout()
    other.call("c1", [1, 2, 3], [10, 99])
    out = run_builder([first, *other.packed(), second, first], terminal_call_id="c2")
    assert out.notes.parent_link_failures == {"duplicate_call_id_conflict": 1}
    assert out.notes.unresolved_parent_calls == ["c1"]
    assert out.notes.terminal_chain == "broken"
    assert training_rows("r0", out)[0].reasons == ("duplicate_call_id_conflict",)


def test_a_record_that_no_array_can_hold_is_named_and_the_others_are_built() -> None:
    rollout = two_turns(deltas=False)
    entries = rollout.entries()
    entries[1].prompt_token_ids = [-1]
    out = run_builder(entries)
    assert paths(out) == {"main": ["c1"]}
    assert out.doubts == {"c2": "unpackable_record"}
    assert out.notes.parent_link_failures == {"unpackable_record": 1}


def test_a_record_that_lost_a_log_prob_after_it_was_made_is_named_by_its_chain() -> None:
    entries = two_turns().entries()
    entries[1].generation_log_probs = []
    out = run_builder(entries)
    assert paths(out) == {"main": ["c1", "c2"]}
    with pytest.raises(ValueError, match="'c2': generation_token_ids has 1 tokens, generation_log_probs 0"):
        out.chains[0].validate()


def test_nothing_in_nothing_out() -> None:
    for builder in ("prefix_merging", "per_request"):
        out = run_builder([], builder=builder)
        assert (out.chains, out.quarantined, out.notes.builder, out.notes.chains) == ([], [], builder, 0)
    assert run_builder([], terminal_call_id="c1").notes.terminal_chain == "not_captured"


def test_records_are_not_changed() -> None:
    rollout = two_turns()
    entries = rollout.entries()
    before = [entry.model_copy(deep=True) for entry in entries]
    run_builder(entries, terminal_call_id="c2")
    assert entries == before


# --- one row a call (B99) ------------------------------------------------------------------------------------------


def test_every_request_is_a_chain_with_its_whole_prompt() -> None:
    rollout = two_turns()
    rollout.call("e3", [6], [], "c2")
    out = run_builder(rollout.packed()[::-1], builder="per_request")
    assert {chain.chain_id: chain.token_ids().tolist() for chain in out.chains} == {
        "req-0": rollout.sequences["c1"],
        "req-1": rollout.sequences["c2"],
        "req-2": rollout.sequences["e3"],
    }
    assert out.chains[1].root_prompt == [1, 2, 3, 10, 11, 4, 5]


def test_a_request_whose_prompt_cannot_be_rebuilt_is_left_out_and_named() -> None:
    rollout = two_turns()
    out = run_builder(rollout.packed()[1:], builder="per_request")
    assert (out.chains, out.doubts) == ([], {"c2": "delta_chain_unreconstructable"})


# --- size ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deltas", [True, False])
def test_thousands_of_turns_do_not_recurse(deltas: bool) -> None:
    rollout = TokenRollout(deltas=deltas)
    parent = None
    for turn in range(3000 if deltas else 300):
        call_id = f"c{turn:04}"
        rollout.call(call_id, [turn], [] if turn % 3 == 1 else [turn], parent)
        parent = call_id
    out = run_builder(rollout.packed())
    assert (out.notes.chains, out.notes.roots, out.notes.delivered_fraction) == (1, 1, 1.0)
    assert_true(training_rows("r0", out)[0], rollout)
