from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import InputError
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.rows.row_keys import RowKeys, attempt_index, key_of


@contextmanager
def keys(tmp_path: Path, *rows: Any) -> Iterator[RowKeys]:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    with MaterialisedRows(path) as opened:
        yield RowKeys(opened)


def row(task: Any, rollout: int, **more: Any) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, **more}


@pytest.mark.parametrize("colliding", [False, True])
def test_rows_are_found_by_their_indices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colliding: bool) -> None:
    if colliding:
        monkeypatch.setattr("gym_ray.rollouts.rows.row_keys._hash", lambda key: 7)
    rows = [row(task, rollout, n=task) for task in range(9, 0, -1) for rollout in (0, 1)]
    with keys(tmp_path, *rows, row("x-1", 0, _ng_attempt_index=3)) as found:
        for ordinal, value in enumerate(rows):
            assert found.find(str(key_of(value))) == (ordinal, 0)
        assert found.find("x-1-0") == (18, 3)
        assert found.find("10-0") is None
        assert found.warnings == []


def test_no_rows_have_no_keys(tmp_path: Path) -> None:
    with keys(tmp_path) as found:
        assert found.find("0-0") is None


def test_two_rows_with_one_key_and_damaged_rows_are_named(tmp_path: Path) -> None:
    with keys(tmp_path, row(0, 0), "{broken\n", row("0", 0), {"no": "indices"}, row(1, 0)) as found:
        assert found.find("1-0") == (4, 0)
        with pytest.raises(InputError, match=r"rows\.jsonl:3: .*as row 1 \(0-0\)"):
            found.find("0-0")
        assert [warning.split(": ")[0].rpartition(":")[2] for warning in found.warnings] == ["2", "4"]


@pytest.mark.parametrize(
    ("record", "key", "attempt"),
    [
        (row(0, 0), "0-0", 0),
        (row("a", 2, _ng_attempt_index="3"), "a-2", 3),
        (row(0, 0, _ng_attempt_index=-1), "0-0", 0),
        (row(0, 0, _ng_attempt_index="x"), "0-0", 0),
        (row(0, 0, _ng_attempt_index=[1]), "0-0", 0),
        (row(None, 0), None, 0),
        ({"_ng_task_index": 0}, None, 0),
        (row({"a": 1}, 0), None, 0),
    ],
)
def test_what_a_record_says_of_its_row(record: dict[str, Any], key: str | None, attempt: int) -> None:
    assert key_of(record) == key
    assert attempt_index(record) == attempt
