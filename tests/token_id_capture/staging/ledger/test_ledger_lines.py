from __future__ import annotations

import json
from typing import Any

import pytest

from gym_ray.errors import DamagedRecordError
from gym_ray.testing.ledger_commits import commit_of_turn
from gym_ray.token_id_capture.staging.ledger.ledger_lines import (
    commit_line,
    commit_row,
    failure_row,
    line_of,
    manifest_entry,
    parsed_row,
    read_line,
)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"admitted_at": None},
        {"admitted_at": 7},
        {"output_fingerprint": None, "continuation_fingerprint": None, "fingerprint_version": 0},
        {"weight_version": 2**70, "response_id": "é\n"},
    ],
)
@pytest.mark.parametrize("turn", [0, 2])
def test_a_row_is_read_back_as_it_was(turn: int, changed: dict[str, Any]) -> None:
    commit = commit_of_turn(turn, **changed)
    line = commit_line(commit_row(commit))
    assert line.isascii()
    assert line.count(b"\n") == 1
    row = parsed_row(line[:-1], "here")
    assert row is not None
    assert manifest_entry(row, "here") == commit.record
    assert read_line(line[:-1], "here") == line_of(commit_row(commit), "here", line)


def test_a_line_that_is_spelled_otherwise_is_the_same() -> None:
    row = commit_row(commit_of_turn(1))
    spelled = json.dumps(dict(reversed(row.items())), indent=1).replace("\n", " ").encode()
    assert read_line(spelled, "here") == line_of(row, "here")


def test_columns_that_are_not_known_are_left_alone() -> None:
    commit = commit_of_turn(0)
    row = commit_row(commit) | {"of_a_newer_version": [1]}
    assert manifest_entry(row, "here") == commit.record


def test_a_row_without_a_staging_key_is_in_no_manifest() -> None:
    row = commit_row(commit_of_turn(0)) | {"staging_key": None}
    assert manifest_entry(row, "here") is None


def test_a_failure_is_read_back() -> None:
    line = read_line(commit_line(failure_row("c1", "lost")).strip(), "here")
    assert line is not None
    assert (line.model_call_id, line.failure_reason, line.lookup) == ("c1", "lost", None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chain_hash", "x" * 64),
        ("cumulative_hash", 5),
        ("cum_len", True),
        ("context_len", "1"),
        ("staging_chain", ["a", ""]),
        ("staging_key", 5),
        ("mode", "tokens"),
        ("delta_len", 0),
        ("parent_call_id", None),
        ("response_id", 5),
        ("staging_digest", None),
        ("model_call_id", ""),
    ],
)
def test_a_wrong_column_is_named_with_its_place(name: str, value: object) -> None:
    row = commit_row(commit_of_turn(1)) | {name: value}
    with pytest.raises(DamagedRecordError, match=rf"r1\.lineage\.jsonl:7: .*({name}|parent|digest|delta)"):
        read_line(commit_line(row)[:-1], "r1.lineage.jsonl:7")
