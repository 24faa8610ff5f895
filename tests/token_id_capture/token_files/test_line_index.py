from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gym_ray.storage.calls import FileCalls
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.reasons import CONFLICTING_RECORD, DAMAGED_LINE, INVALID_RECORD
from gym_ray.token_id_capture.token_files.entry_lines import encode_entry
from gym_ray.token_id_capture.token_files.line_index import IndexCache, KnownBytes, LineIndex, ScannedEntries, line_at

CALLS = FileCalls()


def line(call_id: str, **members: Any) -> bytes:
    return encode_entry(call_entry(call_id, [1, 2], [3], rollout_id="r0", **members))


@contextmanager
def file_of(tmp_path: Path, data: bytes) -> Iterator[int]:
    path = tmp_path / "records"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


def scanned(tmp_path: Path, data: bytes) -> tuple[LineIndex, ScannedEntries]:
    index, found = LineIndex(), ScannedEntries("r0")
    with file_of(tmp_path, data) as fd:
        index.scan(CALLS, fd, len(data), found)
    return index, found


def test_records_are_found_and_counted_from_any_offset(tmp_path: Path) -> None:
    first, second = line("c0"), line("c1")
    index, found = scanned(tmp_path, first + b"\n" + second)
    assert index.offsets == {"c0": 0, "c1": len(first) + 1}
    assert [entry.model_call_id for entry in found.entries] == ["c0", "c1"]
    assert (found.problems, index.torn_at, index.end) == ([], None, len(first) + 1 + len(second))
    assert (index.changes(), index.changes(1), index.changes(index.end)) == (2, 1, 0)
    assert index.unproven


@pytest.mark.parametrize("tail", [b'{"cut', b'{"cut\n', b"\x00\x00", b'{"cut\n\n', b'"x'])
def test_a_last_line_that_is_no_json_is_torn(tmp_path: Path, tail: bytes) -> None:
    index, found = scanned(tmp_path, line("c0") + tail)
    assert index.torn_at == index.end == len(line("c0"))
    assert (found.problems, index.changes()) == ([], 1)


def test_a_whole_last_line_without_its_line_feed_is_a_record(tmp_path: Path) -> None:
    data = line("c0") + line("c1").rstrip()
    index, found = scanned(tmp_path, data)
    assert [entry.model_call_id for entry in found.entries] == ["c0", "c1"]
    assert (index.end, index.torn_at) == (len(data), None)


def test_damage_costs_itself_is_named_and_counts(tmp_path: Path) -> None:
    data = line("c0") + b'{"cut\n' + b"[1]\n" + b'{"model_call_id":3}\n' + line("c1")
    index, found = scanned(tmp_path, data)
    assert [entry.model_call_id for entry in found.entries] == ["c0", "c1"]
    at = len(line("c0"))
    assert [(problem.reason, problem.detail) for problem in found.problems] == [
        (DAMAGED_LINE, f"line at byte {at} is no JSON"),
        (DAMAGED_LINE, f"line at byte {at + 6} is no record of a call"),
        (DAMAGED_LINE, f"line at byte {at + 10} is no record of a call"),
    ]
    assert index.changes() == 5


def test_a_line_of_json_at_the_end_is_damage_and_not_torn(tmp_path: Path) -> None:
    index, found = scanned(tmp_path, line("c0") + b"5\n")
    assert index.torn_at is None
    assert [problem.reason for problem in found.problems] == [DAMAGED_LINE]


@pytest.mark.parametrize(
    ("replaced", "by", "problem"),
    [
        (b'"schema_version":1', b'"schema_version":9', "upgrade the reader"),
        (b'"generation_log_probs":[-0.25]', b'"generation_log_probs":[null]', "generation_log_probs"),
        (b'"generation_token_ids":[3]', b'"generation_token_ids":[3,4]', "generation_token_ids has 2 tokens"),
        (b'"generation_token_ids":[3]', b'"generation_token_ids":[-3]', "-3"),
        (b'"rollout_id":"r0"', b'"rollout_id":"r1"', "belongs to rollout 'r1'"),
    ],
)
def test_a_record_that_is_none_of_this_rollout_is_named_with_its_call(
    tmp_path: Path, replaced: bytes, by: bytes, problem: str
) -> None:
    assert replaced in line("c1")
    index, found = scanned(tmp_path, line("c0") + line("c1").replace(replaced, by) + line("c2"))
    assert [entry.model_call_id for entry in found.entries] == ["c0", "c2"]
    assert [(one.reason, one.model_call_id) for one in found.problems] == [(INVALID_RECORD, "c1")]
    assert f"record at byte {len(line('c0'))}" in found.problems[0].detail
    assert problem in found.problems[0].detail
    assert set(index.offsets) == {"c0", "c1", "c2"}  # its begun call has its record, however bad


def test_copies_are_left_out_and_contradictions_named(tmp_path: Path) -> None:
    copies = line("c0", created_at=1.0) * 2 + line("c0", created_at=2.0)
    index, found = scanned(tmp_path, copies + line("c0", model="other"))
    assert [entry.created_at for entry in found.entries] == [1.0]
    assert [(problem.reason, problem.model_call_id) for problem in found.problems] == [(CONFLICTING_RECORD, "c0")]
    assert f"record at byte {len(copies)} differs from the one at byte 0" in found.problems[0].detail
    assert index.changes() == 2


def test_an_index_goes_on_where_it_ended(tmp_path: Path) -> None:
    with file_of(tmp_path, line("c0")) as fd:
        index = LineIndex()
        index.scan(CALLS, fd, len(line("c0")))
        index.unproven = False
        reads: list[tuple[int, int]] = []

        class Reading(FileCalls):
            def pread(self, fd: int, size: int, offset: int) -> bytes:
                reads.append((size, offset))
                return super().pread(fd, size, offset)

        os.pwrite(fd, line("c1"), len(line("c0")))
        index.scan(Reading(), fd, 2 * len(line("c0")))
        assert reads == [(len(line("c1")), len(line("c0")))]
        assert (list(index.offsets), index.unproven) == (["c0", "c1"], True)


def test_an_index_is_not_believed_for_a_file_that_only_looks_alike(tmp_path: Path) -> None:
    with file_of(tmp_path, line("c0") + line("c1")) as fd:
        info = os.fstat(fd)
        index = LineIndex(info.st_dev, info.st_ino)
        index.scan(CALLS, fd, info.st_size)
        assert index.fits(CALLS, fd, info.st_dev, info.st_ino, info.st_size)
        assert index.fits(CALLS, fd, info.st_dev, info.st_ino, info.st_size + 5)
        assert not index.fits(CALLS, fd, info.st_dev, info.st_ino + 1, info.st_size)
        assert not index.fits(CALLS, fd, info.st_dev, info.st_ino, info.st_size - 1)
        os.pwrite(fd, line("c0") + line("d1"), 0)  # the inode came back, with a file of the same size
        assert not index.fits(CALLS, fd, info.st_dev, info.st_ino, info.st_size)


def test_a_record_without_a_call_id_in_the_usual_spelling_still_has_known_bytes() -> None:
    assert KnownBytes.of_line(b'{ "model_call_id" : "c0" }', 7) == KnownBytes(7, b'{ "model_call_id" : "c0" }')


def test_a_line_is_read_whole_whatever_its_length(tmp_path: Path) -> None:
    long = b"x" * 200_000
    with file_of(tmp_path, b"a\n" + long + b"\nlast") as fd:
        assert line_at(CALLS, fd, 0) == b"a"
        assert line_at(CALLS, fd, 2) == long
        assert line_at(CALLS, fd, len(long) + 3) == b"last"


def index_of(calls: int) -> LineIndex:
    return LineIndex(offsets={f"c{number}": number for number in range(calls)})


def test_the_cache_forgets_what_was_used_least_recently() -> None:
    cache = IndexCache(max_calls=10)
    for rollout_id in ("a", "b", "c"):
        cache.keep(rollout_id, index_of(2))
    assert cache.find("a") is not None
    cache.keep("d", index_of(2))
    assert [rollout_id for rollout_id in "abcd" if rollout_id in cache] == ["a", "c", "d"]
    assert cache.find("b") is None
    cache.drop("a")
    cache.drop("a")
    assert cache.find("a") is None
    cache.keep("e", index_of(2))
    assert cache.find("c") is not None


def test_an_index_that_grew_counts_with_what_it_holds_now() -> None:
    cache = IndexCache(max_calls=10)
    index = index_of(1)
    for calls in range(1, 9):
        index.offsets = index_of(calls).offsets
        cache.keep("a", index)
    cache.keep("b", index_of(2))
    assert "a" not in cache
    assert "b" in cache


def test_one_index_is_kept_however_large() -> None:
    cache = IndexCache(max_calls=10)
    cache.keep("a", index_of(5))
    cache.keep("large", index_of(1000))
    assert cache.find("a") is None
    assert cache.find("large") is not None
