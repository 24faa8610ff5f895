from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.rollouts.row_states.failure_classes import (
    FAILURE_CLASS_CODES,
    OTHER_CLASS,
    TERMINAL,
    TERMINAL_TIMEOUTS_RETRIED,
    class_code,
    failure_flags,
    flags_class,
)
from gym_ray.rollouts.row_states.run_state import RunState


def test_a_fresh_state_has_every_row_pending_with_attempt_0() -> None:
    state = RunState.fresh(3)
    assert list(state.pending(1)) == [0, 1, 2]
    assert list(state.attempts) == [0, 0, 0]
    assert state.count(1) == (0, 0, 3)


def test_a_row_costs_at_most_8_bytes() -> None:
    state = RunState.fresh(1_000_000)
    assert sum(sys.getsizeof(getattr(state, name)) for name in RunState.__slots__) < 8_000_000


def test_the_next_attempt_is_behind_every_start_and_every_failure() -> None:
    state = RunState.fresh(3)
    state.note_started(0, 4)
    state.note_started(0, 1)
    state.note_failure(1, 0, 0)
    state.note_failure(1, 0, 0)  # two rows of a sidecar without attempt numbers consume two attempts
    state.note_failure(2, 6, 0)
    assert list(state.attempts) == [5, 2, 7]
    assert list(state.failures) == [0, 2, 1]


def test_what_gates_a_row() -> None:
    state = RunState.fresh(4)
    assert state.note_done(0, 0) is False
    assert state.note_done(0, 1) is True
    state.note_failure(1, 0, failure_flags({"_ng_failure_class": "x", "_ng_failure_terminal": True}))
    state.note_failure(1, 1, failure_flags({"_ng_failure_class": "agent_timeout"}))
    for attempt in range(3):
        state.note_failure(2, attempt, 0)
    assert list(state.pending(3)) == [3]
    assert list(state.pending(4)) == [2, 3]
    assert state.count(3) == (1, 2, 1)
    assert state.last_class[1] == class_code("agent_timeout"), (
        "the flag of an earlier failure stays, the class does not"
    )


def test_the_second_rule_of_what_is_final_gates_other_rows() -> None:
    state = RunState.fresh(2)
    state.note_failure(0, 0, failure_flags({"_ng_failure_class": "timeout_exceeded", "_ng_failure_terminal": True}))
    state.note_failure(1, 0, failure_flags({"_ng_failure_class": "skipped"}))
    assert list(state.pending(3)) == [1]
    assert list(state.pending(3, retry_terminal_timeouts=True)) == [0]
    assert state.count(3, retry_terminal_timeouts=True) == (0, 1, 1)


def test_numbers_that_do_not_fit_stay_at_their_largest() -> None:
    state = RunState.fresh(1)
    for _ in range(300):
        state.note_failure(0, 70_000, 0)
    assert (state.failures[0], state.attempts[0]) == (255, 65_535)


ATTEMPTS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.one_of(st.integers(0, 3), st.sampled_from([0xFFFD, 0xFFFE, 0xFFFF, 0x10000, 0xFFFFFFFF])),
        st.integers(0, 0xFFFF),
    ),
    max_size=12,
)


def columns(attempts: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ordinals, numbers, flags = zip(*attempts, strict=True) if attempts else ((), (), ())
    return np.array(ordinals, "<u8"), np.array(numbers, "<u4"), np.array(flags, "<u4")


def fields(state: RunState) -> dict[str, list[int]]:
    return {name: list(getattr(state, name)) for name in RunState.__slots__}


@given(ATTEMPTS, ATTEMPTS, ATTEMPTS, ATTEMPTS)
def test_many_attempts_at_once_leave_what_they_leave_one_by_one(
    starts: list[tuple[int, int, int]],
    results: list[tuple[int, int, int]],
    failures: list[tuple[int, int, int]],
    more: list[tuple[int, int, int]],
) -> None:
    single, several = RunState.fresh(5), RunState.fresh(5)
    for ordinal, attempt, _ in starts:
        single.note_started(ordinal, attempt)
    several.note_starts(*columns(starts)[:2])
    twice = sum(single.note_done(ordinal, attempt) for ordinal, attempt, _ in results + more)
    assert several.note_results(*columns(results)[:2]) + several.note_results(*columns(more)[:2]) == twice
    for failure in failures + more:
        single.note_failure(*failure)
    several.note_failures(*columns(failures))
    several.note_failures(*columns(more))
    assert fields(several) == fields(single)


def test_many_failures_of_one_row_stop_at_the_largest_number() -> None:
    state = RunState.fresh(2)
    for _ in range(2):
        state.note_failures(*columns([(1, 0, 0)] * 200))
    assert (list(state.failures), list(state.attempts)) == ([0, 255], [0, 255])


def test_codes_are_what_stored_frames_mean_by_them() -> None:
    assert dict(FAILURE_CLASS_CODES) == {
        "agent_request_failed": 1,
        "agent_run_error": 2,
        "agent_timeout": 3,
        "judge_failed": 4,
        "engine_unavailable": 5,
        "worker_lost": 6,
        "node_lost": 7,
        "invalid_row": 8,
        "timeout_exceeded": 9,
        "skipped": 10,
        "judge_invalid": 11,
        "quarantined": 12,
        "cancelled": 13,
    }
    assert class_code(None) == 0
    assert class_code("made up") == class_code(7) == class_code(["x"]) == OTHER_CLASS


BOTH = TERMINAL | TERMINAL_TIMEOUTS_RETRIED


@pytest.mark.parametrize(
    ("record", "bits"),
    [
        ({"_ng_failure_class": "judge_failed"}, 0),
        ({"_ng_failure_class": "judge_failed", "_ng_failure_terminal": True}, BOTH),
        ({"_ng_failure_class": "judge_failed", "_ng_failure_terminal": 1}, BOTH),
        ({"_ng_failure_class": "judge_failed", "_ng_failure_terminal": False}, 0),
        ({"_ng_failure_class": "timeout_exceeded", "_ng_failure_terminal": True}, TERMINAL),
        ({"_ng_failure_class": "reference_missing", "_ng_failure_terminal": True}, TERMINAL),
        ({"_ng_failure_class": "x", "_ng_failure_fault": "eval_missing", "_ng_failure_terminal": True}, TERMINAL),
        ({"_ng_failure_class": "x", "fault": "transport_ineligible", "_ng_failure_terminal": True}, TERMINAL),
        ({"_ng_failure_class": "x", "fault": ["eval_missing"], "_ng_failure_terminal": True}, BOTH),
        ({"_ng_failure_class": "skipped"}, TERMINAL_TIMEOUTS_RETRIED),
        ({}, 0),
    ],
)
def test_terminal_by_both_rules_of_d54(record: dict[str, object], bits: int) -> None:
    flags = failure_flags(record)
    assert flags & 0xFF == bits
    assert flags_class(flags) == class_code(record.get("_ng_failure_class"))
