"""The calls of a manifest as a forest; every call is looked at once."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ray.errors import RebuildError
from gym_ray.token_id_capture.staging.ledger_records import CallRecord
from gym_ray.token_id_capture.staging.manifest_graph import call_chain, check_manifest_graph, secondary_leaves


def row(call_id: str, parent: str | None, start: int, end: int, admitted_at: float | None = None) -> CallRecord:
    return CallRecord(
        model_call_id=call_id,
        parent_call_id=parent,
        prev_len=start,
        delta_len=end - start,
        cum_len=end,
        weight_version=1,
        digest="1" * 64,
        extras_digest="2" * 64,
        staging_key=f"k/{call_id}",
        mode="text" if parent is None else "token_in",
        chain_hash="3" * 64,
        cumulative_hash="4" * 64,
        response_id=f"resp-{call_id}",
        admitted_at=admitted_at,
    )


def bypassed(call_id: str, parent: str) -> CallRecord:
    return row(call_id, "p", 4, 5).model_copy(update={"parent_call_id": parent, "cum_len": 4, "delta_len": 0})


def test_a_forest_in_any_order_is_right() -> None:
    rows = [row("c", "b", 5, 6), row("b", "a", 3, 5), row("x", None, 0, 2), row("a", None, 0, 3), row("d", "b", 5, 9)]
    check_manifest_graph(rows)
    assert call_chain("d", {one.model_call_id: one for one in rows}) == ["a", "b", "d"]


@pytest.mark.parametrize(
    ("rows", "code", "named"),
    [
        ([row("b", "a", 3, 5)], "missing_parent", "'b' continues 'a'"),
        ([row("a", None, 0, 3), row("b", "a", 4, 5)], "parent_length_mismatch", "'b' begins at 4"),
        ([row("b", "a", 3, 5), row("a", "b", 5, 3 + 3)], "parent_length_mismatch", "its parent 'a' ends at 6"),
        ([bypassed("x", "y"), bypassed("y", "x")], "lineage_cycle", "'x' is its own ancestor"),
        ([bypassed("x", "x")], "lineage_cycle", "'x' is its own ancestor"),
    ],
)
def test_a_graph_that_is_none_has_a_code(rows: list[CallRecord], code: str, named: str) -> None:
    with pytest.raises(RebuildError, match=named) as raised:
        check_manifest_graph(rows)
    assert raised.value.code == code


def test_every_call_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row("c0", None, 0, 1), *(row(f"c{at}", f"c{at - 1}", at, at + 1) for at in range(1, 3000))]
    looked: list[str] = []

    class Counted(CallRecord):
        def __getattribute__(self, name: str) -> Any:
            if name == "prev_len":
                looked.append(super().__getattribute__("model_call_id"))
            return super().__getattribute__(name)

    counted = [Counted.model_construct(**one.__dict__) for one in rows]
    for order in (counted, counted[::-1]):
        looked.clear()
        check_manifest_graph(order)
        assert sorted(looked) == sorted(one.model_call_id for one in rows[1:])


def test_a_leaf_is_told_only_where_there_is_one() -> None:
    rows = [
        row("main", None, 0, 1),
        row("z", None, 0, 1),
        row("alone", None, 0, 1, 3.0),
        row("a", None, 0, 1, 2.0),
        row("a1", "a", 1, 2),
        row("a2", "a1", 2, 3),
        row("z1", "z", 1, 2),
        row("z2", "z", 1, 2),
    ]
    assert secondary_leaves(rows, "main") == [
        ("a", "a2", ""),
        ("alone", None, "abandoned_root"),
        ("z", None, "ambiguous_leaf"),
    ]
