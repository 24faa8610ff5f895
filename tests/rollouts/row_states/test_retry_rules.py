from __future__ import annotations

import pytest

from gym_ray.rollouts.row_states.failure_classes import (
    FAILURE_CLASS_CODES,
    TERMINAL,
    TERMINAL_TIMEOUTS_RETRIED,
    failure_flags,
)
from gym_ray.rollouts.row_states.retry_rules import (
    DEFAULT_MAX_ATTEMPTS,
    NEVER_RETRIED,
    RETRIED_IN_RUN,
    RETRIED_ON_RESUME,
    is_gated,
    max_attempts_of,
)


@pytest.mark.parametrize(
    ("failures", "terminal", "most", "gated"),
    [(0, 0, 3, False), (2, 0, 3, False), (3, 0, 3, True), (7, 0, 3, True), (1, 0, 1, True), (1, TERMINAL, 3, True)],
)
def test_a_row_is_given_up_when_its_budget_is_spent_or_a_failure_is_final(
    failures: int, terminal: int, most: int, gated: bool
) -> None:
    assert is_gated(failures, terminal, most) is gated


@pytest.mark.parametrize(
    ("record", "by_default", "with_timeouts_retried"),
    [
        ({"_ng_failure_class": "judge_failed"}, False, False),
        ({"_ng_failure_class": "judge_failed", "_ng_failure_terminal": True}, True, True),
        ({"_ng_failure_class": "timeout_exceeded", "_ng_failure_terminal": True}, True, False),
        ({"_ng_failure_class": "skipped"}, False, True),
        ({"_ng_failure_class": "invalid_row", "_ng_failure_terminal": True}, True, True),
    ],
)
def test_the_second_rule_tries_timeouts_again_and_never_what_was_skipped(
    record: dict[str, object], by_default: bool, with_timeouts_retried: bool
) -> None:
    flags = failure_flags(record)
    assert is_gated(1, flags) is by_default
    assert is_gated(1, flags, retry_terminal_timeouts=True) is with_timeouts_retried


def test_the_two_rules_look_at_bits_of_their_own() -> None:
    assert is_gated(0, TERMINAL) is not is_gated(0, TERMINAL_TIMEOUTS_RETRIED)
    assert is_gated(0, TERMINAL_TIMEOUTS_RETRIED, retry_terminal_timeouts=True)


def test_classes_that_are_tried_again_are_known_to_the_index_and_no_class_is_both() -> None:
    assert set(FAILURE_CLASS_CODES) >= RETRIED_ON_RESUME | NEVER_RETRIED
    assert RETRIED_IN_RUN < RETRIED_ON_RESUME
    assert not RETRIED_ON_RESUME & NEVER_RETRIED


@pytest.mark.parametrize("retry_terminal_timeouts", [False, True])
@pytest.mark.parametrize("name", sorted(RETRIED_ON_RESUME | NEVER_RETRIED))
def test_the_rows_of_a_class_are_gated_by_what_its_records_say(name: str, retry_terminal_timeouts: bool) -> None:
    """The sets document: a class by itself gates nothing, and those that are never tried again are marked so."""
    flags = failure_flags({"_ng_failure_class": name, "_ng_failure_terminal": name in NEVER_RETRIED})
    gated = is_gated(1, flags, retry_terminal_timeouts=retry_terminal_timeouts)
    assert gated is (name in NEVER_RETRIED)


@pytest.mark.parametrize(("text", "budget"), [("1", 1), (" 12 ", 12), ("4", 4)])
def test_the_environment_may_set_the_budget(text: str, budget: int) -> None:
    assert max_attempts_of(text) == (budget, None)


def test_without_a_text_there_is_nothing_to_warn_of() -> None:
    assert max_attempts_of(None) == (DEFAULT_MAX_ATTEMPTS, None)


@pytest.mark.parametrize("text", ["", "zero", "0", "-1", "1.5", "²", "1_000"])
def test_an_unusable_text_means_the_default_and_is_named(text: str) -> None:
    budget, warning = max_attempts_of(text)
    assert budget == DEFAULT_MAX_ATTEMPTS
    assert warning is not None
    assert repr(text) in warning
