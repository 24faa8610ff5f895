from __future__ import annotations

import pytest

from gym_ray.testing.ledger_commits import commit_of_turn
from gym_ray.token_id_capture.staging import CallRecord, SelectedTerminal, select_terminal_call


def chain(length: int) -> list[CallRecord]:
    return [commit_of_turn(turn).record for turn in range(length)]


@pytest.mark.parametrize("length", [1, 2, 5_000])
def test_the_end_of_one_chain_is_its_last_call_however_long_it_is(length: int) -> None:
    one = commit_of_turn(1).record
    rows = [commit_of_turn(0).record] + [
        one.model_copy(update={"model_call_id": f"c{turn}", "parent_call_id": f"c{turn - 1}"})
        for turn in range(1, length)
    ]
    assert select_terminal_call(rows[::-1]) == SelectedTerminal(f"c{length - 1}", "selected")


def test_a_call_that_stands_twice_names_nothing() -> None:
    rows = chain(2)
    assert select_terminal_call([*rows, rows[0]]) == (None, "duplicate_call_id")


def test_a_retry_of_a_call_that_went_on_is_passed_over() -> None:
    retry = commit_of_turn(1, call_id="retry").record
    assert select_terminal_call([*chain(3), retry]).terminal_model_call_id == "c2"
    assert select_terminal_call([*chain(2), retry]) == (None, "ambiguous_terminal")


@pytest.mark.parametrize("admitted_at", [-5.0, 0.0, 5.0])
def test_of_roots_the_first_that_went_on_counts_and_one_without_a_stamp_comes_last(admitted_at: float) -> None:
    unstamped, *rest = chain(2)
    early = commit_of_turn(0, call_id="early", admitted_at=admitted_at).record
    below = commit_of_turn(1, call_id="below", parent_call_id="early").record
    rows = [unstamped.model_copy(update={"admitted_at": None}), *rest, early, below]
    assert select_terminal_call(rows).terminal_model_call_id == "below"
    assert select_terminal_call(rows[:-1]).terminal_model_call_id == "c1"
