"""However much media calls have, the tokens of one of them take few requests and few bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gym_ray.storage.posix import PosixStore
from gym_ray.testing.numbered_calls import numbered_call
from gym_ray.testing.watched_store import WatchedStore
from gym_ray.token_id_capture.staging.parquet.attachments.preparing import prepare_attachments
from gym_ray.token_id_capture.staging.parquet.calls.call_rows import CallItem
from gym_ray.token_id_capture.staging.parquet.calls.call_segments import row_group_sizes
from gym_ray.token_id_capture.staging.parquet.calls.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.parquet.calls.staging_source import ParquetStagingSource
from gym_ray.token_id_capture.staging.parquet.segments.keys import parse_key
from gym_ray.token_id_capture.staging.parquet.segments.schema import MAX_SEGMENT_BYTES
from gym_ray.token_id_capture.staging.parquet.segments.segment_reader import SegmentReader
from gym_ray.token_id_capture.staging.parquet.upkeep.compaction import CompactionRules, compact

MIB = 1024 * 1024
FOOTER_BYTES_PER_ROW_GROUP = 2048


def stage(root: Path, calls: range, media: Any, tokens: int = 20) -> list[str]:
    """Stage calls from many threads, and return their keys."""
    with ParquetStagingSink(root, timeout_s=60) as sink, ThreadPoolExecutor(len(calls)) as pool:
        results = list(pool.map(lambda at: sink.stage(numbered_call(at, tokens), attachments=media(at)), calls))
    assert [result.error for result in results if not result.ok] == []
    return [str(result.staging_key) for result in results]


def check_fetch(root: Path, keys: list[str]) -> None:
    for key in keys:
        store = WatchedStore(PosixStore(root))
        with ParquetStagingSource("", store=store) as fresh:
            fresh.fetch([key])
        assert len(store.requests) <= 3
        assert store.bytes_read() <= 512 * 1024


def pixels(at: int) -> dict[str, Any]:
    return {"pixels": np.full(5 * MIB, at, np.uint8)}


def test_a_segment_takes_so_many_bytes_of_media_and_no_more(tmp_path: Path) -> None:
    keys = stage(tmp_path, range(20), pixels)
    segments = [SegmentReader(PosixStore(tmp_path), name) for name in PosixStore(tmp_path).list("default/")]
    assert len(segments) >= 20 * 5 * MIB // MAX_SEGMENT_BYTES
    assert max(segment.row_groups for segment in segments) <= 1 + MAX_SEGMENT_BYTES // (5 * MIB)
    check_fetch(tmp_path, keys[::7])


def test_a_call_with_more_media_than_a_segment_takes_has_one_of_its_own(tmp_path: Path) -> None:
    keys = stage(tmp_path, range(4), lambda at: {"pixels": np.full(40 * MIB, at, np.uint8)} if at == 1 else {})
    check_fetch(tmp_path, keys)
    with ParquetStagingSource(tmp_path) as source:
        view = source.open_attachment(keys[1], "pixels")
        assert sum(part.nbytes for part in view.chunks()) == 40 * MIB
    assert SegmentReader(PosixStore(tmp_path), str(parse_key(keys[1]).segment)).rows(0) == 1


def test_compaction_keeps_to_the_bounds_too_however_well_media_compress(tmp_path: Path) -> None:
    keys = [key for first in range(0, 12, 2) for key in stage(tmp_path, range(first, first + 2), pixels)]
    rules = CompactionRules(delay_s=0.0, max_row_groups=8)
    report = compact(PosixStore(tmp_path), rules=rules)
    assert len(report.written) == 2
    assert all(SegmentReader(PosixStore(tmp_path), name).row_groups <= 8 for name in report.written)
    assert compact(PosixStore(tmp_path), rules=rules).written == []
    with ParquetStagingSource(tmp_path) as source:
        for at, key in enumerate(keys):
            assert (source.open_attachment(key, "pixels").read() == pixels(at)["pixels"]).all()


def test_compaction_counts_the_row_groups_of_tokens(tmp_path: Path) -> None:
    for first in range(0, 8, 2):
        stage(tmp_path, range(first, first + 2), lambda at: None, 20_000)
    report = compact(PosixStore(tmp_path), rules=CompactionRules(delay_s=0.0, max_row_groups=3))
    assert len(report.written) == 2
    assert all(SegmentReader(PosixStore(tmp_path), name).row_groups <= 8 for name in report.written)


@pytest.mark.parametrize("tokens", [1, 2_000, 7_200, 16_385, 32_768])
def test_full_segments_keep_footer_and_row_group_small(tokens: int) -> None:
    """What pyarrow writes is measured in the tests above; here is what a segment of such calls comes to."""
    nbytes = CallItem(numbered_call(1, tokens), prepare_attachments({})).nbytes
    calls = min(1024, MAX_SEGMENT_BYTES // nbytes)
    groups = list(row_group_sizes([tokens] * calls))
    token_bytes = max(groups) * tokens * 6
    assert len(groups) * FOOTER_BYTES_PER_ROW_GROUP + token_bytes <= 512 * 1024


def test_compaction_leaves_alone_what_already_has_many_row_groups(tmp_path: Path) -> None:
    (large,) = stage(tmp_path, range(1), lambda at: {"pixels": np.full(20 * MIB, at, np.uint8)})
    small = [key for first in (1, 2) for key in stage(tmp_path, range(first, first + 1), lambda at: {})]
    report = compact(PosixStore(tmp_path), rules=CompactionRules(delay_s=0.0, max_row_groups=8))
    assert set(report.moved) == {str(parse_key(key).segment) for key in small}
    check_fetch(tmp_path, [large])
