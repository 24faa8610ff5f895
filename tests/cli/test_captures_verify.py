"""``gym-ray captures verify`` says what is wrong, and its exit code says whether anything is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gym_ray.cli.app import app
from gym_ray.model_call_capture import CaptureStore

_CALL = {"model_call_id": "c0", "dialect": "chat", "status_code": 200, "request": {}, "response": {}}


@pytest.fixture
def store(tmp_path: Path) -> CaptureStore:
    store = CaptureStore(tmp_path / "captures")
    store.record("0-0", _CALL)
    return store


def _run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["captures", "verify", *arguments])


def test_a_sound_directory_ends_with_0(store: CaptureStore) -> None:
    result = _run(str(store.root))
    assert result.exit_code == 0
    assert "1 files (0 without a call), 1 calls in 1 lines" in result.output
    assert "errors: 0" in result.output


def test_errors_end_with_3_and_are_shown_with_their_remedy(store: CaptureStore) -> None:
    store.record("0-1", _CALL)
    result = _run(str(store.root))
    assert result.exit_code == 3
    assert "0-1.capture.jsonl:1: call c0 is in" in result.output
    assert "find out who copied" in result.output


def test_warnings_alone_end_with_0(store: CaptureStore) -> None:
    store.mark_incomplete("0-0")
    result = _run(str(store.root))
    assert result.exit_code == 0
    assert "warnings: 1" in result.output


def test_json_is_one_object(store: CaptureStore) -> None:
    with store.path_for("0-0").open("ab") as file:
        file.write(b"{broken\n" * 30)
    result = _run(str(store.root), "--json")
    assert result.exit_code == 3
    document = json.loads(result.output)
    assert document["errors"] == 30
    assert document["calls"] == 1
    assert len(document["findings"]) == 20
    assert document["findings"][0] == {
        "severity": "error",
        "code": "damaged_line",
        "file": str(store.path_for("0-0")),
        "line": 2,
        "what": document["findings"][0]["what"],
        "remedy": document["findings"][0]["remedy"],
    }
    assert "10 more" in _run(str(store.root)).output
