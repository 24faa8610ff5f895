from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.testing.token_rollouts import TokenRollout
from gym_ray.token_id_capture.building.calls import Call, continues, gather, packed_record, tokens_between
from gym_ray.token_id_capture.building.proving import prove_records

LINE = st.lists(
    st.tuples(st.lists(st.integers(0, 2**64 - 1), max_size=4), st.lists(st.integers(0, 9), max_size=4), st.booleans()),
    min_size=1,
    max_size=6,
)


def proved(rollout: TokenRollout) -> list[Call]:
    calls = gather(rollout.packed()).calls
    assert prove_records(calls, in_full=lambda _: True) == []
    return list(calls.values())


@given(LINE, st.data())
def test_any_stretch_of_a_sequence_is_found(line: list[tuple[list[int], list[int], bool]], data: st.DataObject) -> None:
    rollout = TokenRollout()
    parent = None
    for number, (added, generation, delta) in enumerate(line):
        rollout.call(f"c{number}", added, generation, parent, delta=delta)
        parent = f"c{number}"
    last = proved(rollout)[-1]
    whole = rollout.sequences[last.call_id]
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    assert tokens_between(last, start, end).tolist() == whole[start:end]


def test_what_lies_in_one_buffer_is_not_copied() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2], [3])
    rollout.call("c2", [4], [5], "c1")
    entries = rollout.packed_in_one_buffer()
    calls = gather(entries).calls
    prove_records(calls, in_full=lambda _: False)
    assert np.shares_memory(tokens_between(calls["c2"], 1, 5), entries[0].prompt_token_ids)


def test_a_prompt_continues_what_it_starts_with_and_nothing_else() -> None:
    rollout = TokenRollout(deltas=False)
    rollout.call("c1", [1, 2], [3])
    rollout.call("c2", [4], [5], "c1", delta=True)
    rollout.call("whole", [6], [7], "c2")
    rollout.call("other", [1, 2, 3, 4, 9], [7])
    rollout.call("exact", [], [8], "c2")
    c1, c2, whole, other, exact = proved(rollout)
    assert all(continues(call, earlier) for call in (whole, exact) for earlier in (c1, c2))
    assert continues(c2, c1)
    assert continues(other, c1)
    assert not continues(other, c2)
    assert not continues(c1, c2)
    assert not continues(exact, whole)


def test_a_delta_continues_whatever_its_base_continues() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2], [3])
    rollout.call("c2", [4], [5], "c1")
    rollout.call("c3", [6], [7], "c2")
    c1, _, c3 = proved(rollout)
    assert continues(c3, c1)


def test_the_first_record_of_a_call_stays() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2], [3])
    first = rollout.packed()
    rollout.records["c1"]["created_at"] = 99.0
    other_time = rollout.packed()
    rollout.records["c1"]["generation_log_probs"] = [-3.0]
    other_log_prob = rollout.packed()
    assert gather([*first, *other_time]).failures == []
    found = gather([*first, *other_log_prob])
    assert found.failures == [("duplicate_call_id_conflict", "c1")]
    assert found.calls["c1"].record is first[0]


def test_a_record_that_contradicts_itself_is_refused_unless_only_its_log_probs_do() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2], [3])
    (entry,) = rollout.entries()
    entry.generation_log_probs = [-1.0, -2.0]
    assert packed_record(entry).generation_log_probs.tolist() == [-1.0, -2.0]
    entry.token_item_index = 5
    with pytest.raises(ValueError, match="token_item_index 5"):
        packed_record(entry)
    assert gather([entry]).failures == [("unpackable_record", "c1")]
