from __future__ import annotations

import sys

import pytest

from gym_ray.rollouts.failure_classes import (
    FAILURE_CLASS_CODES,
    OTHER_CLASS,
    TERMINAL,
    TERMINAL_TIMEOUTS_RETRIED,
    class_code,
    failure_flags,
    flags_class,
)
from gym_ray.rollouts.run_state import RunState


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


def test_numbers_that_do_not_fit_stay_at_their_largest() -> None:
    state = RunState.fresh(1)
    for _ in range(300):
        state.note_failure(0, 70_000, 0)
    assert (state.failures[0], state.attempts[0]) == (255, 65_535)


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
