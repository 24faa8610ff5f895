from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gym_ray.rollouts.rows.freed_memory import give_memory_back

EXPAND = """
import sys
from pathlib import Path
from gym_ray.rollouts.rows.materialised import materialise_rows
from gym_ray.rollouts.rows.input_rows import RowOptions

def resident_bytes():
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmRSS")).split()[1])

few, many, out = map(Path, sys.argv[1:])
materialise_rows(few, out, RowOptions())
before = resident_bytes()
materialise_rows(many, out, RowOptions())
print(resident_bytes() - before)
"""


class Library:
    """A C library that counts how often it is asked to give memory back."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def malloc_trim(self, padding: ctypes.c_size_t) -> int:
        self.asked.append(padding.value)
        return 1


def test_the_c_library_is_asked_each_time_to_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    give_memory_back()
    give_memory_back()
    assert library.asked == [0, 0]


def test_a_c_library_that_cannot_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: asked.append(name) or object())
    give_memory_back()
    assert asked == [None], "the library that this process has loaded"


@pytest.mark.slow
def test_an_expansion_keeps_nothing_for_its_rows(tmp_path: Path) -> None:
    row = {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}}
    few, many = tmp_path / "few.jsonl", tmp_path / "many.jsonl"
    for path, count in ((few, 1_000), (many, 40_000)):
        path.write_text("".join(json.dumps({**row, "n": n}) + "\n" for n in range(count)))
    command = [sys.executable, "-c", EXPAND, str(few), str(many), str(tmp_path / "out.jsonl")]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert int(done.stdout) < 2_750_000, "what the tables of so many rows leave behind when nothing gives it back"
