from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gym_ray.errors import InputError
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_manifest import read_manifest
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.testing.written_runs import WrittenRun


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    with WrittenRun(tmp_path, 5) as run:
        return run.paths


def row_lines(paths: RunPaths) -> list[bytes]:
    return paths.materialised.read_bytes().splitlines()


def test_a_begun_run_has_its_index_and_reads_each_row(paths: RunPaths) -> None:
    before = paths.rows_index.stat().st_mtime_ns
    with MaterialisedRows.of(paths) as rows:
        assert [rows.read(ordinal) for ordinal in range(len(rows))] == row_lines(paths)
        assert [rows.size(ordinal) for ordinal in range(5)] == [len(line) + 1 for line in row_lines(paths)]
        manifest = read_manifest(paths)
        assert manifest is not None
        assert rows.sha256 == manifest.materialized_sha256
    assert paths.rows_index.stat().st_mtime_ns == before
    assert paths.rows_index.stat().st_size == 64 + 12 * 5


def test_a_changed_row_is_named_when_it_is_read_and_the_others_are_not_hurt(paths: RunPaths) -> None:
    data = bytearray(paths.materialised.read_bytes())
    at = len(row_lines(paths)[0]) + 10
    data[at] ^= 1
    paths.materialised.write_bytes(data)
    with MaterialisedRows.of(paths) as rows:
        for call in (lambda: rows.read(1), lambda: rows.attempt(1, 0)):
            with pytest.raises(InputError) as caught:
                call()
            assert (caught.value.path, caught.value.line) == (str(paths.materialised), 2)
        assert [rows.attempt(ordinal, 0).rollout_id for ordinal in (0, 2, 3, 4)] == ["0-0", "2-0", "3-0", "4-0"]


@pytest.mark.parametrize("change", [b"", b"x"])
def test_a_file_of_another_size_is_refused_at_once(paths: RunPaths, change: bytes) -> None:
    data = paths.materialised.read_bytes()
    paths.materialised.write_bytes(data + change if change else data[:-1])
    with pytest.raises(InputError, match=f"has {len(data) + len(change) or 0} bytes|has {len(data) - 1} bytes"):
        MaterialisedRows.of(paths)


def test_an_index_of_other_rows_is_built_again(paths: RunPaths, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with WrittenRun(other, 7) as run:
        foreign = run.paths.rows_index.read_bytes()
    own = paths.rows_index.read_bytes()
    paths.rows_index.write_bytes(foreign)
    with MaterialisedRows.of(paths) as rows:
        assert len(rows) == 5
        assert rows.read(4) == row_lines(paths)[4]
    assert paths.rows_index.read_bytes() == own


def test_every_flipped_byte_of_the_index_is_healed_or_named(paths: RunPaths) -> None:
    own, lines = paths.rows_index.read_bytes(), row_lines(paths)
    for at in range(len(own)):
        damaged = bytearray(own)
        damaged[at] ^= 0x10
        paths.rows_index.write_bytes(damaged)
        with MaterialisedRows.of(paths) as rows:
            wrong = [ordinal for ordinal in range(5) if read_or_line(rows, ordinal) != lines[ordinal]]
            assert [read_or_line(rows, ordinal) for ordinal in wrong] == [ordinal + 1 for ordinal in wrong]
            assert bool(wrong) == (at >= 64), "a damaged header is seen, and costs nothing"
            assert len(wrong) <= 2


def read_or_line(rows: MaterialisedRows, ordinal: int) -> bytes | int:
    try:
        return rows.read(ordinal)
    except InputError as error:
        return error.line


def test_rows_without_an_index_leave_none(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": "' + b"x" * 3_000_000 + b'"}\n{}\n')
    with MaterialisedRows(path) as rows:
        assert [len(rows.read(ordinal)) for ordinal in range(3)] == [8, 3_000_000 + 9, 2]
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.touch()
    with MaterialisedRows(path) as rows:
        assert len(rows) == 0


MEASURE = """
import sys
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_paths import RunPaths

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

def read():
    with open("/proc/self/io") as io:
        return int(io.readline().split()[1])

paths = RunPaths.of(sys.argv[1])
MaterialisedRows.of(paths).close()
memory, before = anonymous(), read()
rows = MaterialisedRows.of(paths)
count, first, last = len(rows), rows.read(0), rows.read(len(rows) - 1)
print(count, anonymous() - memory, read() - before)
"""


def test_many_rows_cost_neither_memory_nor_a_scan(tmp_path: Path) -> None:
    paths = RunPaths.of(tmp_path / "out.jsonl")
    with WrittenRun(tmp_path, 1):
        pass
    row = json.dumps({"agent_ref": {"name": "a"}, "pad": "x" * 40}).encode() + b"\n"
    paths.manifest.unlink()
    paths.materialised.write_bytes(row * 200_000)
    with MaterialisedRows.of(paths) as rows:
        digest, count = rows.sha256, len(rows)
    manifest = {"format": 1, "run_id": "0" * 32, "rows": count, "materialized_sha256": digest}
    paths.manifest.write_text(json.dumps(manifest))
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, str(paths.output)], check=True, capture_output=True, text=True
    )
    rows_found, anonymous_kib, read = map(int, measured.stdout.split())
    assert rows_found == 200_000
    assert anonymous_kib < 400, "eight bytes a row would be 1,560 KiB"
    assert read < 64 * 1024


def test_a_short_row_in_memory_is_read_at_once_and_any_other_is_left_to_a_thread(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = row_lines(paths)  # which brings them into memory
    with MaterialisedRows.of(paths) as rows:
        found = [rows.read_at_once(ordinal, 4096) for ordinal in range(5)]
        assert found == lines
        assert rows.attempt(3, 0, data=found[3]) == rows.attempt(3, 0)
        assert rows.read_at_once(0, len(lines[0])) is None, "longer than allowed: its line feed counts"

        def not_in_memory(*_: object) -> int:
            raise BlockingIOError

        monkeypatch.setattr("os.preadv", not_in_memory)
        assert rows.read_at_once(0, 4096) is None
        monkeypatch.setattr("os.preadv", lambda _, buffers, *__: len(buffers[0]) - 1)
        assert rows.read_at_once(0, 4096) is None, "only its beginning was in memory"


def test_a_changed_row_that_is_read_at_once_is_named_too(paths: RunPaths) -> None:
    data = bytearray(paths.materialised.read_bytes())
    data[len(row_lines(paths)[0]) + 10] ^= 1
    paths.materialised.write_bytes(data)
    with MaterialisedRows.of(paths) as rows, pytest.raises(InputError) as caught:
        rows.read_at_once(1, 4096)
    assert (caught.value.path, caught.value.line) == (str(paths.materialised), 2)
