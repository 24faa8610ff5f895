"""The examples of staging: what the worker staged is what each way of reading gives back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "staging"


def run(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=50, check=False)


def said(name: str, *arguments: str, cwd: Path) -> list[str]:
    done = run(name, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_workers_calls_become_rows_with_their_pixels(tmp_path: Path) -> None:
    where = str(tmp_path / "staged")
    (told,) = said("worker.py", where, "ledger", "--rollouts", "3", cwd=tmp_path)
    assert told.startswith("6 calls of 3 rollouts staged in")
    proved = said("read_rows.py", where, "ledger", cwd=tmp_path)
    assert [line.split(":")[0] for line in proved] == ["0-0", "1-0", "2-0"]
    for line in proved:
        # Questions of 23 and 22 bytes, and two answers of eight.
        assert line.startswith(f"{line[:3]}: 61 tokens, 16 to learn from, mean log prob -4.554, reward None")
        assert line.endswith("; pixel_values: bfloat16[3, 32, 32]")
    plain = said("read_rows.py", where, "ledger", "--with", "pyarrow", cwd=tmp_path)
    assert plain == [line.split(", reward")[0] for line in proved]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{here}/staged", "nowhere"], "nowhere: no such directory; name the token_id_capture.dir"),
        (["{here}/staged", ".", "--with", "pyarrow"], "staged holds no segments of calls"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, arguments: list[str], problem: str) -> None:
    done = run("read_rows.py", *(one.format(here=tmp_path) for one in arguments), cwd=tmp_path)
    assert done.returncode == 2
    assert problem in done.stderr
