"""``gym-ray captures`` shows what is odd about calls, and which ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gym_ray.cli.captures import captures_app
from gym_ray.model_call_capture import CaptureStore


def call(call_id: str, **members: Any) -> dict[str, Any]:
    response = {"choices": [{"index": 0, "message": {"content": "hi"}}]}
    whole = {"model_call_id": call_id * 32, "dialect": "chat", "status_code": 200, "response": response, "request": {}}
    return whole | members


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    store = CaptureStore(tmp_path)
    store.record("0-0", call("a"))
    store.record("0-0", call("b", request={"seed": 2**64}))
    store.record("0-0", call("c", request={"seed": 2**64, "text": "cut \ud83d"}))
    with store.path_for("0-0").open("ab") as file:
        file.write(b'{"damaged\n')
    store.record("0-1", call("d"))
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(captures_app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_ls_counts_flags(directory: Path) -> None:
    lines = [line.split() for line in run("ls", str(directory)).splitlines()]
    assert lines[0][-1] == "flags"
    assert lines[1][:2] == ["0-0", "3"]
    assert lines[1][-6:] == ["damaged", "lines:", "1", "big_integer", "(2),", "lone_surrogate"]
    assert lines[2][-1] == "recorded"


def test_show_names_the_flags_of_each_call(directory: Path) -> None:
    first, second, third = run("show", str(directory), "0-0").split("call ")[1:]
    assert "flags" not in first
    assert "flags big_integer\n" in second
    assert "flags big_integer, lone_surrogate\n" in third
