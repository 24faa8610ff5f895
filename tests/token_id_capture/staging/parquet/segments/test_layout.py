from __future__ import annotations

import pytest

from gym_ray.token_id_capture.staging.parquet.segments.layout import (
    SegmentName,
    check_partition,
    frozen_name,
    moved_name,
    new_writer,
    parse_segment_name,
    retired_name,
    rollout_of_frozen,
)

WRITER = "0123456789abcdef0123"


def test_a_segment_name_says_what_it_was_made_of() -> None:
    name = SegmentName("run-1", WRITER, 7, "calls")
    assert str(name) == f"run-1/{WRITER}/00000007.calls.parquet"
    assert parse_segment_name(str(name)) == name


def test_a_number_of_more_than_eight_digits_is_a_number() -> None:
    name = SegmentName("p", WRITER, 123_456_789, "tokens")
    assert parse_segment_name(str(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "store.json",
        f"p/{WRITER}/0000007.calls.parquet",
        f"p/{WRITER}/000000007.calls.parquet",
        f"p/{WRITER[1:]}/00000007.calls.parquet",
        f"p/{WRITER}/00000007.calls.parquet.tmp",
        f".p/{WRITER}/00000007.calls.parquet",
        f"moved/{WRITER}/00000007.calls.parquet",
        f"p/{WRITER}/00000007.CALLS.parquet",
        f"p/{WRITER}/00000007.calls.parquet\n",
    ],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert parse_segment_name(name) is None


@pytest.mark.parametrize("partition", ["default", "run-1", "A.b_c", "_", "x" * 100])
def test_partitions(partition: str) -> None:
    assert check_partition(partition) == partition


@pytest.mark.parametrize(
    "partition", ["", ".", "..", ".a", "a/b", "é", "a:b", "frozen", "retired", "moved", "x" * 101, "a\n"]
)
def test_names_that_no_partition_can_have(partition: str) -> None:
    with pytest.raises(ValueError, match="cannot be a staging partition"):
        check_partition(partition)


def test_writers_differ() -> None:
    writers = {new_writer() for _ in range(100)}
    assert len(writers) == 100
    assert {len(writer) for writer in writers} == {20}


@pytest.mark.parametrize("rollout", ["t3-g0", "a/b", ".hidden", "..", "ü %", "x:y"])
def test_a_marker_names_any_rollout(rollout: str) -> None:
    name = frozen_name(rollout)
    assert name.count("/") == 1
    assert not name.removeprefix("frozen/").startswith(".")
    assert rollout_of_frozen(name) == rollout


def test_a_plain_rollout_id_stands_in_its_marker_as_it_is() -> None:
    assert frozen_name("t3-g0.1") == "frozen/t3-g0.1.json"


def test_other_names_are_no_markers() -> None:
    with pytest.raises(ValueError, match="no marker"):
        rollout_of_frozen("retired/x.json")


def test_names_of_notes() -> None:
    assert retired_name("u1") == "retired/u1.json"
    assert moved_name("p", WRITER, 7) == f"moved/p/{WRITER}-7.json"
