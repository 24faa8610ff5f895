from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.correlation import derive_rollout_id
from gym_ray.errors import InputError
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.rows.materialised import materialise_rows
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows


def row(**more: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}, **more}


def expand(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> MaterialisedRows:
    source, destination = tmp_path / "in.jsonl", tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(r) + "\n" for r in rows))
    result = materialise_rows(source, destination, RowOptions(**options), run_id="e" * 32)
    assert result.sha256 == hashlib.sha256(destination.read_bytes()).hexdigest()
    found = MaterialisedRows(destination)
    assert len(found) == result.rows
    return found


def test_an_index_that_a_caller_uses_is_never_handed_out(tmp_path: Path) -> None:
    with expand(tmp_path, [row(n=1), row(n=2), row(_ng_task_index=1), row(_ng_task_index="0")]) as rows:
        assert [json.loads(rows.read(i))["_ng_task_index"] for i in range(4)] == [2, 3, 1, "0"]


def test_two_callers_forms_of_one_index_share_their_repeats(tmp_path: Path) -> None:
    with expand(tmp_path, [row(_ng_task_index=5), row(_ng_task_index="5")]) as rows:
        assert [rows.attempt(i, 0).rollout_id for i in range(2)] == ["5-0", "5-1"]


@pytest.mark.parametrize(
    ("rows", "options", "field"),
    [
        ([row(_ng_rollout_id="x"), row(_ng_rollout_id="x", n=1)], {}, "_ng_rollout_id"),
        ([row(_ng_rollout_id="x")], {"num_repeats": 2}, "_ng_rollout_id"),
        ([row(_ng_rollout_id="x")], {"fan_out": {"a": ["a", "b"]}}, "_ng_rollout_id"),
        ([row(n=1), row(_ng_rollout_id="0-0", n=2)], {}, "_ng_task_index"),
        ([row(capture_rollout_id="x"), row(_ng_rollout_id="0-0")], {}, "_ng_task_index"),
    ],
)
def test_clashing_ids_are_refused_before_anything_is_left(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as caught:
        expand(tmp_path, rows, **options)
    assert caught.value.field == field
    assert not (tmp_path / "rows.jsonl").exists()


def test_repeats_go_by_the_agent_that_runs_a_row_and_then_by_the_name_it_gave(tmp_path: Path) -> None:
    repeats = {"a": 2, "b": 3, "_default": 1}
    with expand(tmp_path, [row()], agent_map={"a": "b"}, num_repeats=repeats) as rows:
        assert len(rows) == 3
    with expand(tmp_path, [row()], agent_map={"a": "c"}, num_repeats=repeats) as rows:
        assert len(rows) == 2
    with expand(tmp_path, [row(agent_ref={"name": "d"})], agent_map={"d": "c"}, num_repeats=repeats) as rows:
        assert len(rows) == 1


def test_an_entry_of_repeats_that_matches_nothing_warns(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(row()) + "\n")
    options = RowOptions(num_repeats={"a": 2, "nobody": 3})
    assert materialise_rows(source, tmp_path / "out", options).warnings == ("num_repeats.nobody matches no row",)


def test_a_seed_needs_an_object_to_be_added_to(tmp_path: Path) -> None:
    body = {"input": "q", "metadata": {"extra_body": "[1]"}}
    with pytest.raises(InputError, match="JSON object"):
        expand(tmp_path, [row(responses_create_params=body)], num_repeats_add_seed=True)


@pytest.mark.parametrize("metadata", ["abc", [1], 5, True])
def test_a_seed_needs_metadata_that_can_hold_it(tmp_path: Path, metadata: object) -> None:
    rows = [row(), row(responses_create_params={"input": "q", "metadata": metadata})]
    with pytest.raises(InputError, match=r"in\.jsonl:2: responses_create_params\.metadata: must be an object"):
        expand(tmp_path, rows, num_repeats_add_seed=True)
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.parametrize(("levels", "more"), [(253, ""), (254, "too deeply"), (600, "too deeply"), (800, "too deeply")])
def test_a_row_that_could_not_be_written_again_is_named(tmp_path: Path, levels: int, more: str) -> None:
    deep: object = "x"
    for _ in range(levels):
        deep = [deep]
    rows = [row(), row(deep=deep)]
    if not more:
        with expand(tmp_path, rows) as found:
            assert json.loads(found.read(1))["deep"] == deep
        return
    with pytest.raises(InputError, match=rf"in\.jsonl:2: .*{more}"):
        expand(tmp_path, rows)


@pytest.mark.parametrize(("attempt", "refused"), [(2**31 - 1, False), (2**31, True), (10**60, True)])
def test_an_attempt_index_leaves_room_for_a_file_name(tmp_path: Path, attempt: int, refused: bool) -> None:
    rows = [row(_ng_task_index="t" * 200, _ng_attempt_index=attempt)]
    if refused:
        with pytest.raises(InputError, match=r"in\.jsonl:1: _ng_attempt_index: .* from 0 to 2147483647"):
            expand(tmp_path, rows)
        return
    for unique in (False, True):
        with expand(tmp_path, rows, unique_rollout_ids=unique) as found:
            assert len(found.attempt(0, 1).rollout_id) <= 230


def test_big_numbers_and_lone_surrogates_survive(tmp_path: Path) -> None:
    with expand(tmp_path, [row(n=2**70, s="\ud800")]) as rows:
        assert json.loads(rows.read(0))["n"] == 2**70
        assert json.loads(rows.read(0))["s"] == "\ud800"


@given(
    tasks=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    repeats=st.integers(1, 4),
    interleave=st.booleans(),
)
def test_every_expansion_has_unique_ids_and_a_stable_order(
    tmp_path_factory: pytest.TempPathFactory, tasks: list[int], repeats: int, interleave: bool
) -> None:
    tmp_path = tmp_path_factory.mktemp("rows")
    contents = [row(n=n) for n in tasks]
    with expand(tmp_path, contents, num_repeats=repeats, interleave_repeats=interleave) as rows:
        found = [json.loads(rows.read(i)) for i in range(len(rows))]
    assert len({derive_rollout_id(r) for r in found}) == len(found) == repeats * len(tasks)
    keys = [(r["_ng_rollout_index"] if interleave else 0) for r in found]
    assert keys == sorted(keys)
    for index in {r["_ng_task_index"] for r in found}:
        same = [r for r in found if r["_ng_task_index"] == index]
        assert [r["_ng_rollout_index"] for r in same] == list(range(len(same)))
        assert len({r["n"] for r in same}) == 1


def test_an_attempt_counts_on_from_the_rows_own(tmp_path: Path) -> None:
    with expand(tmp_path, [row(), row(n=1, _ng_attempt_index=4), row(_ng_rollout_id="job")]) as rows:
        assert [rows.attempt(0, n).rollout_id for n in (0, 1, 2)] == ["0-0", "0-0-a1", "0-0-a2"]
        assert rows.attempt(0, 0).data == rows.read(0)
        assert rows.attempt(1, 0).rollout_id == "1-0-a4"
        assert json.loads(rows.attempt(1, 2).data)["_ng_attempt_index"] == 6
        assert rows.attempt(2, 1).rollout_id == "job-a1"
        assert rows.attempt(0, 0).agent == "a"


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_cut_off_file_is_refused_at_every_byte_of_its_last_row(tmp_path: Path, cut: int) -> None:
    expand(tmp_path, [row(), row(n=1)]).close()
    path = tmp_path / "rows.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError, match="cut off"):
        MaterialisedRows(path)


def test_a_damaged_row_is_named_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1\n')
    with MaterialisedRows(path) as rows, pytest.raises(InputError, match="damaged"):
        rows.attempt(0, 0)


def test_rows_outside_the_file_are_refused(tmp_path: Path) -> None:
    with expand(tmp_path, [row()]) as rows:
        for ordinal in (-1, 1):
            with pytest.raises(IndexError):
                rows.read(ordinal)


def unique(tmp_path: Path, rows: list[dict[str, Any]], run_id: str) -> list[str]:
    source, destination = tmp_path / "in.jsonl", tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(r) + "\n" for r in rows))
    materialise_rows(source, destination, RowOptions(unique_rollout_ids=True, num_repeats=2), run_id=run_id)
    with MaterialisedRows(destination) as found:
        return [found.attempt(ordinal, ordinal % 2).rollout_id for ordinal in range(len(found))]


def test_ids_of_two_runs_never_meet_when_they_are_to_be_unique(tmp_path: Path) -> None:
    first, second = (unique(tmp_path, [row(), row(_ng_task_index="t")], digit * 32) for digit in "ab")
    assert first == ["a" * 12 + end for end in ("-0-0", "-0-1-a1", "-t-0", "-t-1-a1")]
    assert not set(first) & set(second)


def test_an_id_under_another_name_is_data_of_the_task(tmp_path: Path) -> None:
    """D20, D21: its calls are captured under the id that every other row would have, also where ids never repeat."""
    with expand(tmp_path, [row(capture_rollout_id="x")], num_repeats=2) as rows:
        assert [rows.attempt(ordinal, 0).rollout_id for ordinal in range(2)] == ["0-0", "0-1"]
    options = RowOptions(unique_rollout_ids=True)
    materialise_rows(tmp_path / "in.jsonl", tmp_path / "out", options, run_id="f" * 32)
    with MaterialisedRows(tmp_path / "out") as rows:
        assert rows.attempt(0, 0).rollout_id == f"{'f' * 12}-0-0"


def test_a_row_with_an_id_of_its_own_keeps_it(tmp_path: Path) -> None:
    source, destination = tmp_path / "in.jsonl", tmp_path / "rows.jsonl"
    source.write_text(json.dumps(row(_ng_rollout_id="mine")) + "\n")
    materialise_rows(source, destination, RowOptions(unique_rollout_ids=True), run_id="c" * 32)
    with MaterialisedRows(destination) as found:
        assert found.attempt(0, 0).rollout_id == "mine"


def test_unique_ids_need_a_run_to_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run_id"):
        unique(tmp_path, [row()], "abc")


def test_a_row_whose_attempt_is_no_number_is_named_when_its_next_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    odd = row(_ng_task_index=0, _ng_rollout_index=0, _ng_attempt_index=[])
    path.write_text("".join(json.dumps(r) + "\n" for r in (odd, {**odd, "_ng_attempt_index": "x"})))
    with MaterialisedRows(path) as rows:
        assert rows.attempt(0, 1).rollout_id == "0-0-a1"
        with pytest.raises(InputError, match=r"rows\.jsonl:2: _ng_attempt_index: 'x' is not a whole number"):
            rows.attempt(1, 1)
