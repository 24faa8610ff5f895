"""A note that is not the one of the segment leads nowhere, and a plan that is wrong gives none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.storage.posix import PosixStore
from gym_ray.testing.numbered_calls import numbered_call
from gym_ray.token_id_capture.staging.parquet.calls.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.parquet.calls.staging_source import ParquetStagingSource
from gym_ray.token_id_capture.staging.parquet.segments.keys import parse_key
from gym_ray.token_id_capture.staging.parquet.segments.layout import SegmentName, new_writer
from gym_ray.token_id_capture.staging.parquet.segments.moves import MoveNote, Moves, encode_note, note_name
from gym_ray.token_id_capture.staging.parquet.upkeep.compaction import CompactionRules, compact
from gym_ray.token_id_capture.staging.parquet.upkeep.compaction_plan import CompactionPlan

OLD, OTHER, NEW = (str(SegmentName("p", new_writer(), 0, "calls")) for _ in range(3))
NOTE = MoveNote(1.5, NEW, {(0, 0): (1, 2), (0, 1): None})


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.create(note_name(OLD), encode_note(OLD, NOTE))
    assert Moves(store).note_of(OLD) == NOTE
    assert Moves(store).note_of(OTHER) is None


@pytest.mark.parametrize(
    "data",
    [
        encode_note(OTHER, NOTE),
        encode_note(OLD, NOTE).replace(b'"version":1', b'"version":2'),
        encode_note(OLD, MoveNote(1.5, "p/q", {})),
        encode_note(OLD, NOTE)[:-5],
        b"",
        b"[]",
        b"null",
        b"{}",
    ],
)
def test_a_note_of_another_segment_or_a_damaged_one_is_named(tmp_path: Path, data: bytes) -> None:
    store = PosixStore(tmp_path)
    store.create(note_name(OLD), data)
    with pytest.raises(ValueError, match=f"{note_name(OLD)} is damaged"):
        Moves(store).note_of(OLD)


def test_a_plan_whose_segment_has_other_calls_moves_nothing(tmp_path: Path) -> None:
    keys = []
    for number in range(2):
        with ParquetStagingSink(tmp_path) as sink:
            keys.append(str(sink.stage(numbered_call(number)).staging_key))
    source, target = (str(parse_key(key).segment) for key in keys)
    store = PosixStore(tmp_path)
    plan = CompactionPlan(target, (source,))
    store.publish(plan.name, plan.encoded())
    report = compact(store, rules=CompactionRules(max_calls=1))
    assert [problem for problem in report.problems if f"is not in {target}" in problem]
    assert report.moved == []
    with ParquetStagingSource(tmp_path) as reader:
        assert [call.model_call_id for call in reader.fetch(keys)] == ["c0", "c1"]
