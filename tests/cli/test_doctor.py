"""``gym-ray doctor`` without a cluster: the mode, the exit code, one JSON object, and messages for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gym_ray.cli.app import app
from gym_ray.errors import SettingsError


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_a_directory_is_usable_and_left_as_it_was(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / "new"), "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert (report["mode"], report["usable"], report["pairs"]) == ("files", True, 3)
    assert "no cluster" in report["watchers"]
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_used_says_why_and_fails() -> None:
    done = CliRunner().invoke(app, ["doctor", "memory://no-place-to-share", "--patience", "0.1"])
    assert done.exit_code == 1
    assert "process 2: memory://no-place-to-share is another store there than on process 1" in done.output
    assert "mode: unusable; not usable as it is" in done.output


def test_a_file_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / "file")])
    assert done.exit_code == 1
    assert f"process 1: {tmp_path / 'file'}: it is no directory" in done.output
    assert "(lost)" not in done.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["http://x/y"], "captures cannot be kept under http://"),
        (["/tmp", "--writer", "someone"], "use direct or hosted"),
        (["memory://x", "--storage-options", "[]"], "is no JSON object"),
    ],
)
def test_wrong_words_are_one_message(words: list[str], told: str) -> None:
    done = CliRunner().invoke(app, ["doctor", *words])
    assert isinstance(done.exception, SettingsError)
    assert told in str(done.exception)
