from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import InputError
from gym_ray.rollouts.run_files.record_reading import damaged_line, iterate_records, line_number
from gym_ray.rollouts.run_files.run_log import line_digest, read_record
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.testing.written_runs import UnsyncedCalls, WrittenRun, resumed


def values(found: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for _, line in found]


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    with WrittenRun(tmp_path, 4, calls=UnsyncedCalls()) as run:
        run.finish(0, 0, reward=1.0)
        run.finish(1, 0, _ng_failure_class="node_lost")
        run.finish(1, 1, reward=0.0, pad="x" * 2_500_000)
        run.finish(2, 0, reward=0.5)
        return run.paths


def test_records_come_in_file_order_with_their_places(paths: RunPaths) -> None:
    found = list(iterate_records(paths, ("main", "failures"), validated=True))
    assert [json.loads(line)["_ng_task_index"] for _, line in found] == [0, 1, 2, 1]
    for written, line in found:
        assert read_record(paths, written) == line
        assert written.digest == line_digest(line)
    assert [written.flags >> 8 for written, _ in found] == [0, 0, 0, 7]


def test_blank_lines_and_a_torn_tail_are_no_records(paths: RunPaths) -> None:
    with paths.output.open("ab") as file:
        file.write(b'\n  \n{"a": 1}\n{"torn": 1')
    assert values(iterate_records(paths))[-1] == {"a": 1}
    assert len(values(iterate_records(paths))) == 4


def test_a_file_that_does_not_exist_has_no_records(tmp_path: Path) -> None:
    assert list(iterate_records(RunPaths.of(tmp_path / "out.jsonl"), ("main", "failures"))) == []


@pytest.mark.parametrize(("line", "only_validated"), [(b"{broken", False), (b"3", False), (b'{"a": b}', True)])
def test_a_damaged_line_is_named_by_file_and_line(paths: RunPaths, line: bytes, only_validated: bool) -> None:
    records = paths.output.read_bytes().splitlines(keepends=True)
    paths.output.write_bytes(b"".join([*records[:2], b"\n", line + b"\n", records[2]]))
    found = iterate_records(paths, validated=only_validated)
    assert len([next(found), next(found)]) == 2
    with pytest.raises(InputError) as caught:
        next(found)
    assert (caught.value.path, caught.value.line) == (str(paths.output), 4)
    assert len(list(iterate_records(paths, ("failures",)))) == 1
    if only_validated:
        place = next(written for written, text in iterate_records(paths) if text == line)
        assert str(damaged_line(paths.output, place.offset)) == str(caught.value)


def test_line_numbers_count_from_1_across_chunks(paths: RunPaths) -> None:
    offsets = [written.offset for written, _ in iterate_records(paths)]
    assert [line_number(paths.output, offset) for offset in offsets] == [1, 2, 3]


def test_a_run_without_an_index_names_damage_too(paths: RunPaths) -> None:
    paths.index.unlink()
    paths.output.write_bytes(b'{"a": b}\n')
    with pytest.raises(InputError, match=r"out\.jsonl:1"):
        list(iterate_records(paths, validated=True))
    with pytest.raises(InputError, match=r"out\.jsonl:1"):
        resumed(paths)
