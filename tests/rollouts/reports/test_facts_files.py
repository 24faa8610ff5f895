from __future__ import annotations

import hashlib
import json
import logging
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from gym_ray import exact_json
from gym_ray.errors import InputError
from gym_ray.evidence.facts import facts_line
from gym_ray.rollouts.reports.facts_files import FactsWriter, read_facts
from gym_ray.rollouts.run_files.run_index import finished_frame
from gym_ray.rollouts.run_paths import OutputFile, RunPaths, Written


def stored(paths: RunPaths, record: dict[str, Any], file: OutputFile = "main") -> Written:
    line = exact_json.dumps(record)
    path = paths.output_of(file)
    offset = path.stat().st_size if path.exists() else 0
    with path.open("ab") as output:
        output.write(line + b"\n")
    return Written(file, offset, len(line) + 1, hashlib.blake2b(line, digest_size=16).digest())


def marked(name: str) -> bytes:
    """Facts that say that they come from the cache."""
    return facts_line({"reward": name}, None, {"verdict": "cached"})


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths.of(tmp_path / "out.jsonl")


def read(paths: RunPaths, file: OutputFile = "main") -> list[tuple[Any, Any]]:
    found = read_facts(paths, file=file, verdict_of=lambda _record: {"verdict": "recomputed"})
    return [(facts.reduced["reward"], facts.verdict["verdict"]) for _written, facts in found]


def test_facts_come_in_the_order_of_the_output_from_the_files_of_all_processes(paths: RunPaths) -> None:
    writers = [FactsWriter(paths) for _ in range(3)]
    places = [stored(paths, {"reward": str(n)}) for n in range(30)]
    for n in reversed(range(30)):
        writers[n % 3].append(places[n], marked(f"c{n}"))
    failure = stored(paths, {"reward": "f"}, "failures")
    writers[0].append(failure, marked("cf"))
    for writer in writers:
        writer.close()
        writer.close()
    assert read(paths) == [(f"c{n}", "cached") for n in range(30)]
    assert read(paths, "failures") == [("cf", "cached")]
    assert [written for written, _ in read_facts(paths)] == places
    assert len(list(paths.facts.iterdir())) == 3


@pytest.mark.parametrize("change", ["nothing", "offset", "length", "digest", "no digest", "torn", "not facts"])
def test_facts_that_are_not_those_of_the_record_are_taken_from_it(paths: RunPaths, change: str) -> None:
    written = stored(paths, {"reward": "r"})
    false = {
        "offset": Written("main", 3, written.length, written.digest),
        "length": Written("main", 0, written.length + 1, written.digest),
        "digest": Written("main", 0, written.length, bytes(16)),
        "no digest": Written("main", 0, written.length),
    }.get(change, written)
    writer = FactsWriter(paths)
    writer.append(false, b'{"reward":1}' if change == "not facts" else marked("c"))
    writer.close()
    if change == "torn":
        writer.path.write_bytes(writer.path.read_bytes()[:-3])
    assert read(paths) == [("c", "cached") if change == "nothing" else ("r", "recomputed")]


def test_a_record_written_anew_is_not_given_the_facts_of_the_old_one(paths: RunPaths) -> None:
    writer = FactsWriter(paths)
    writer.append(stored(paths, {"reward": "a"}), marked("c"))
    writer.flush()
    assert read(paths) == [("c", "cached")]
    paths.output.write_bytes(b'{"reward":"b"}\n')
    assert read(paths) == [("b", "recomputed")]
    writer.append(stored(paths, {"reward": "second"}), marked("c2"))
    writer.close()
    assert read(paths) == [("b", "recomputed"), ("c2", "cached")]


def test_outputs_without_facts_are_read_whole_and_a_damaged_line_is_named(paths: RunPaths) -> None:
    assert read(paths) == []
    paths.output.write_bytes(b'{"reward":1}\n\n{"rew\n{"reward":2}')
    told: list[str] = []
    found = [facts.reduced["reward"] for _, facts in read_facts(paths, damaged=told.append)]
    assert found == [1, 2]
    assert told == [f"{paths.output}, line 3: not a JSON object"]
    with pytest.raises(InputError, match=r"out\.jsonl:3:"):
        list(read_facts(paths))


def test_facts_that_cannot_be_kept_cost_a_warning_and_no_join(
    paths: RunPaths, caplog: pytest.LogCaptureFixture
) -> None:
    paths.directory.write_bytes(b"a file where the directory should be")
    writer = FactsWriter(paths)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            writer.append(stored(paths, {"reward": 1}), marked("c"))
    writer.close()
    assert [str(writer.path) in record.getMessage() for record in caplog.records] == [True]
    assert [facts.reduced["reward"] for _, facts in read_facts(paths)] == [1, 1, 1]
    assert json.loads(paths.output.read_bytes().splitlines()[0]) == {"reward": 1}


def indexed(paths: RunPaths, places: list[Written]) -> None:
    paths.directory.mkdir(exist_ok=True)
    paths.index.write_bytes(b"".join(finished_frame(n, 0, place).encode() for n, place in enumerate(places)))


def overwrite(paths: RunPaths, written: Written, byte: bytes) -> None:
    with paths.output.open("r+b") as output:
        output.seek(written.offset)
        output.write(byte * (written.length - 1))


def test_records_that_the_index_names_and_the_cache_has_are_not_read(paths: RunPaths) -> None:
    places = [stored(paths, {"reward": str(n)}) for n in range(6)]
    failure = stored(paths, {"reward": "f"}, "failures")
    writer = FactsWriter(paths)
    for n in (0, 2, 3, 5):
        writer.append(places[n], marked(f"c{n}"))
    writer.close()
    indexed(paths, [*(places[n] for n in (5, 2, 0, 1)), failure])  # completion order; 3 and 4 were never indexed
    overwrite(paths, places[0], b"x")
    overwrite(paths, places[2], b"x")
    # 0 and 2 are believed unread, 1 is read where the index says, 3 and 4 are found between.
    expected = [("c0", "cached"), ("1", "recomputed"), ("c2", "cached"), ("c3", "cached"), ("4", "recomputed")]
    assert read(paths) == [*expected, ("c5", "cached")]
    assert [written for written, _ in read_facts(paths)] == places
    assert read(paths, "failures") == [("f", "recomputed")]


@pytest.mark.parametrize("fault", ["cut output", "other last record", "torn frame", "frame of nothing", "overlap"])
def test_an_index_that_disagrees_with_the_output_is_not_believed(
    paths: RunPaths, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    places = [stored(paths, {"reward": str(n)}) for n in range(4)]
    writer = FactsWriter(paths)
    for n, place in enumerate(places):
        writer.append(place, marked(f"c{n}"))
    writer.close()
    indexed(paths, places)
    overwrite(paths, places[1], b" ")  # a blank line, which only a reader of the whole output notices
    expected = [("c0", "cached"), ("c2", "cached"), ("c3", "cached")]
    if fault == "cut output":
        with paths.output.open("r+b") as output:
            output.truncate(places[3].offset)
        expected.pop()
    elif fault == "other last record":
        overwrite(paths, places[3], b" ")
        expected.pop()
    elif fault == "overlap":
        indexed(paths, [*places, Written("main", 1, 5, bytes(16))])
    else:
        frames = bytearray(paths.index.read_bytes())
        frames[70:72] = b"zz"
        if fault == "frame of nothing":
            frames = bytearray(bytes(64)) + frames
        paths.index.write_bytes(frames)
    with caplog.at_level(logging.WARNING):
        assert read(paths) == expected
    assert bool(caplog.records) == (fault in ("torn frame", "frame of nothing"))


def test_many_damaged_lines_are_told_without_counting_lines_for_each(paths: RunPaths) -> None:
    paths.output.write_bytes(b"{\n" * 30)
    told: list[str] = []
    assert list(read_facts(paths, damaged=told.append)) == []
    assert told[19] == f"{paths.output}, line 20: not a JSON object"
    assert told[20] == f"{paths.output}, byte 40: not a JSON object"
    assert len(told) == 30


def test_any_number_of_facts_files_is_read_with_few_of_them_open(paths: RunPaths) -> None:
    places = [stored(paths, {"reward": str(n)}) for n in range(300)]
    for n, place in enumerate(places):
        writer = FactsWriter(paths)
        writer.append(place, marked(f"c{n}"))
        writer.close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 100, limits[1]))
    try:
        assert read(paths) == [(f"c{n}", "cached") for n in range(300)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_facts_that_are_taken_away_meanwhile_are_taken_from_the_records(paths: RunPaths) -> None:
    for n in range(2):
        writer = FactsWriter(paths)
        writer.append(stored(paths, {"reward": str(n)}), marked(f"c{n}"))
        writer.close()
    found = read_facts(paths, verdict_of=lambda _record: {"verdict": "recomputed"})
    verdicts = [next(found)[1].verdict["verdict"]]
    for path in paths.facts.iterdir():
        path.unlink()
    assert verdicts + [facts.verdict["verdict"] for _, facts in found] == ["cached", "recomputed"]
