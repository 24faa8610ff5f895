from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gym_ray.errors import StorageError
from gym_ray.storage.posix import PosixStore
from gym_ray.testing.numbered_calls import numbered_call
from gym_ray.token_id_capture.staging.parquet.attachments.attachment_bytes import BytesSource
from gym_ray.token_id_capture.staging.parquet.attachments.preparing import PreparedAttachment, prepare_attachments
from gym_ray.token_id_capture.staging.parquet.calls import call_segments
from gym_ray.token_id_capture.staging.parquet.calls.call_rows import CallItem
from gym_ray.token_id_capture.staging.parquet.calls.call_segments import row_group_sizes, write_calls_segment
from gym_ray.token_id_capture.staging.parquet.segments import schema
from gym_ray.token_id_capture.staging.parquet.segments.committer import RowPlace, SegmentStream
from gym_ray.token_id_capture.staging.parquet.segments.layout import SegmentName
from gym_ray.token_id_capture.staging.parquet.segments.schema import SegmentFacts, check_metadata

NAME = SegmentName("p", "0123456789abcdef0123", 0, "calls")
STORE_ID = "0011223344556677"


def write(root: Path, items: Sequence[CallItem]) -> tuple[list[RowPlace], Any]:
    with PosixStore(root).stream(str(NAME)) as value:
        places = write_calls_segment(SegmentStream(NAME, value, lambda: None), items, STORE_ID)
        value.publish()
    return places, pq.ParquetFile(root / str(NAME))


def call(number: int, media: dict[str, Any] | None = None, tokens: int = 20) -> CallItem:
    return CallItem(numbered_call(number, tokens), None if media is None else prepare_attachments(media))


@pytest.mark.parametrize(
    ("tokens", "groups"),
    [
        ([1] * 16, [16]),
        ([1] * 40, [16, 16, 8]),
        ([32_768, 1], [1, 1]),
        ([32_767, 1, 1], [2, 1]),
        ([1, 32_768, 1], [1, 1, 1]),
        ([200_000] * 3, [1, 1, 1]),
        ([16_384] * 3, [2, 1]),
        ([], []),
    ],
)
def test_row_groups_are_small_in_calls_and_in_tokens(tokens: list[int], groups: list[int]) -> None:
    assert list(row_group_sizes(tokens)) == groups


def test_every_call_is_where_its_place_says(tmp_path: Path) -> None:
    places, file = write(tmp_path, [call(number) for number in range(40)])
    assert file.num_row_groups == 3
    for number, place in enumerate(places):
        assert place.segment == str(NAME)
        row = file.read_row_group(place.row_group, columns=["model_call_id"]).to_pylist()[place.row]
        assert row == {"model_call_id": f"c{number}"}


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    _, file = write(tmp_path, [call(1)])
    facts = check_metadata(file.metadata.metadata, file="f", kind="calls")
    assert facts == SegmentFacts("calls", STORE_ID, str(NAME))
    assert file.schema_arrow.equals(schema.CALLS_SCHEMA)


def media_of(file: Any, first_row: int, nbytes: int) -> bytes:
    column = file.read(columns=["media_data"]).column("media_data")
    data, row = b"", first_row
    while len(data) < nbytes:
        data += column[row].as_py()
        row += 1
    return data


def test_media_follow_the_calls_in_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_segments, "MEDIA_PART_BYTES", 1000)
    monkeypatch.setattr(call_segments, "MEDIA_ROW_GROUP_BYTES", 1500)
    rng = np.random.default_rng(0)
    media = [{"a": rng.integers(0, 256, size, np.uint8).tobytes()} for size in (1, 999, 1000, 1001, 4500, 0)]
    _, file = write(tmp_path, [call(number, given) for number, given in enumerate(media)])
    table = file.read(columns=["row_kind", "rollout_id", "attachments", "media_data"]).to_pylist()
    kinds = [row["row_kind"] for row in table]
    assert kinds == ["call"] * 6 + ["media"] * 10
    for row, given in zip(table, media, strict=False):
        (attachment,) = row["attachments"]
        if given["a"]:
            assert media_of(file, attachment["media_row"], attachment["nbytes"]) == given["a"]
        else:
            assert attachment["media_row"] is None
    sizes = [
        sum(len(value) for value in file.read_row_group(group, columns=["media_data"])["media_data"].to_pylist())
        for group in range(1, file.num_row_groups)
    ]
    assert all(1500 <= size <= 2500 for size in sizes[:-1])


def test_equal_bytes_are_written_once_a_file(tmp_path: Path) -> None:
    image = np.arange(100, dtype=np.uint8)
    items = [
        call(1, {"a": image, "b": image.tobytes()}),
        call(2, {"c": image.reshape(10, 10)}),
        call(3, {"d": image[::-1]}),
    ]
    _, file = write(tmp_path, items)
    rows = file.read(columns=["row_kind", "attachments"]).to_pylist()
    assert [row["row_kind"] for row in rows].count("media") == 2
    places = [entry["media_row"] for row in rows[:3] for entry in row["attachments"]]
    assert places == [3, 3, 3, 4]


def test_an_attachment_that_gives_fewer_bytes_than_announced_fails_the_segment(tmp_path: Path) -> None:
    class Shrinking(BytesSource):
        @property
        def nbytes(self) -> int:
            return 10

    item = call(1, {})
    item.attachments = [PreparedAttachment("a", 0, "bytes", (10,), Shrinking(memoryview(b"12345")))]
    with pytest.raises(StorageError, match="attachment 'a' gave 5 bytes, where 10 were announced"):
        write(tmp_path, [item])
    assert PosixStore(tmp_path).list() == []


def test_a_stream_that_takes_no_more_leaves_nothing(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    with store.stream(str(NAME)) as value:
        value.close()
        with pytest.raises((OSError, ValueError)):
            write_calls_segment(SegmentStream(NAME, value, lambda: None), [call(1)], STORE_ID)
    assert store.list() == []
    assert list((tmp_path / NAME.partition / NAME.writer).iterdir()) == []


def test_waiting_callers_are_told_before_the_first_row_is_encoded(tmp_path: Path) -> None:
    told: list[int] = []
    with PosixStore(tmp_path).stream(str(NAME)) as value:
        stream = SegmentStream(NAME, value, lambda: told.append(value.tell()))
        write_calls_segment(stream, [call(number) for number in range(40)], STORE_ID)
    assert told == [0]
