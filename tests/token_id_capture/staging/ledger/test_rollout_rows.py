"""What is remembered of a rollout: chains are whole, whoever shares them, and cost no more than the rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gym_ray.testing.ledger_commits import asked_at, commit_of_turn
from gym_ray.token_id_capture.staging.ledger.ledger_lines import LedgerLine, commit_row, line_of
from gym_ray.token_id_capture.staging.ledger.rollout_rows import RolloutRows


def line(turn: int, **changed: Any) -> LedgerLine:
    return line_of(commit_row(commit_of_turn(turn, **changed)), "place")


def chain(rows: RolloutRows, turn: int) -> tuple[str, ...]:
    match = rows.resolve(asked_at(turn)).match
    assert match is not None
    return match.staging_chain


def test_a_long_rollout_weighs_as_much_as_its_rows() -> None:
    rows = RolloutRows()
    for turn in range(400):
        rows.add(line(turn))
    assert rows.weight == 400
    for turn in (1, 2, 399, 400):
        assert chain(rows, turn) == tuple(f"r1/c{number}" for number in range(turn))


def test_a_chain_whose_beginning_is_unknown_is_whole_and_weighs() -> None:
    rows = RolloutRows()
    rows.add(line(320))
    assert rows.weight == 21
    assert chain(rows, 321) == tuple(f"r1/c{number}" for number in range(321))


@pytest.mark.parametrize("before", [("r1/x", "r1/c0"), ("r1/c0", "r1/x", "r1/c0"), ("r1/x",), ()])
def test_a_chain_that_begins_otherwise_than_the_parents_is_kept_as_it_is(before: tuple[str, ...]) -> None:
    rows = RolloutRows()
    rows.add(line(0))
    rows.add(replace(line(1), staging_chain=(*before, "r1/c1")))
    rows.add(line(2))
    assert chain(rows, 1) == ("r1/c0",)
    assert chain(rows, 2) == (*before, "r1/c1")
    assert chain(rows, 3) == ("r1/c0", "r1/c1", "r1/c2")


def test_a_row_without_a_chain_has_none() -> None:
    rows = RolloutRows()
    rows.add(replace(line(0), staging_chain=()))
    assert chain(rows, 1) == ()


def test_what_is_known_already_changes_nothing_but_the_weight_of_its_line() -> None:
    rows = RolloutRows()
    for _ in range(3):
        rows.add(line(0))
    assert chain(rows, 1) == ("r1/c0",)
