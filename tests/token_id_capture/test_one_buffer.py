from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.testing.token_rollouts import TokenRollout
from gym_ray.token_id_capture.builder import run_builder
from gym_ray.token_id_capture.one_buffer import in_one_buffer
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.rows import training_rows

CALLS = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.lists(st.sampled_from([1, 2, 2**32 - 1, 2**32, 2**64 - 1]), max_size=3),
        st.lists(st.floats(-9, 0) | st.floats(-9, 0, width=32), max_size=3),
        st.booleans(),
    ),
    max_size=8,
)


@given(CALLS)
def test_records_stay_equal_and_in_order(calls: list[tuple[int, list[int], list[float], bool]]) -> None:
    rollout = TokenRollout()
    ids: list[str] = []
    for number, (pick, added, log_probs, delta) in enumerate(calls):
        parent = [None, *ids][pick % (len(ids) + 1)]
        rollout.call(
            f"c{number}", added, range(len(log_probs)), parent, delta=delta, generation_log_probs=list(log_probs)
        )
        ids.append(f"c{number}")
    records = rollout.packed()
    placed = in_one_buffer(records)
    assert [record.entry() for record in placed] == [record.entry() for record in records]
    for before, after in zip(records, placed, strict=True):
        for name in ("prompt_token_ids", "generation_token_ids", "generation_log_probs"):
            assert getattr(after, name).dtype == getattr(before, name).dtype
            assert not getattr(after, name).flags.writeable


def test_every_line_of_deltas_becomes_a_view_although_their_calls_alternate() -> None:
    rollout = TokenRollout()
    rollout.call("a1", [1], [2])
    rollout.call("b1", [50], [51])
    for turn in range(2, 5):
        for name in "ab":
            rollout.call(f"{name}{turn}", [turn], [turn], f"{name}{turn - 1}")
    placed = in_one_buffer(rollout.packed())
    rows = training_rows("r0", run_builder(placed), branches=True)
    assert len(rows) == 2
    for row in rows:
        assert np.shares_memory(row.token_ids, placed[0].prompt_token_ids.base)
        assert np.shares_memory(row.policy_log_probs, placed[0].generation_log_probs.base)
        assert row.token_ids.tolist() == rollout.sequences[row.spans[-1].model_call_id]


def test_copies_and_circles_of_records_are_kept() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1], [2])
    rollout.call("c2", [3], [4], "c1")
    rollout.call("c3", [5], [6], "c2")
    rollout.records["c2"]["parent_call_id"] = "c3"
    records: list[PackedEntry] = [*rollout.packed(), *rollout.packed()]
    placed = in_one_buffer(records)
    assert [record.entry() for record in placed] == [record.entry() for record in records]
    assert in_one_buffer([]) == []
