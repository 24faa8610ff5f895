"""Compaction loses no key, at whatever step it dies, and whoever reads meanwhile."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gym_ray.errors import CaptureError, ForeignKeyError, StagedCallMissingError, StorageMissingError
from gym_ray.storage.opening import open_store
from gym_ray.storage.posix import PosixStore
from gym_ray.testing.mortal_store import Killed, MortalStore
from gym_ray.testing.staged_rollout import StagedRollout
from gym_ray.token_id_capture.staging import CallRecord, RolloutManifest, StagedCallRecord
from gym_ray.token_id_capture.staging.parquet.calls.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.parquet.calls.staging_source import ParquetStagingSource
from gym_ray.token_id_capture.staging.parquet.upkeep.compaction import CompactionReport, CompactionRules, compact

AT_ONCE = CompactionRules(delay_s=0.0)
Staged = dict[str, tuple[StagedCallRecord, dict[str, Any]]]


def media_of(at: int) -> dict[str, Any]:
    return {"pixels": np.full((at + 1, 2), at, np.float32), "names": [b"a", f"call {at}"]} if at % 2 else {}


def stage(root: Path, rollouts: int = 3, calls: int = 3) -> Staged:
    """Stage rollouts of several calls, each call in a segment of its own; what was staged by key."""
    staged: Staged = {}
    for rollout in range(rollouts):
        made = StagedRollout(f"r{rollout}")
        parent = None
        with ParquetStagingSink(root) as sink:
            for at in range(calls):
                extras = {"at": at} if at else None
                record = made.add(f"c{at}", [rollout, at], [7, 8 + at], parent=parent, extras=extras)
                parent = record.model_call_id
                result = sink.stage(record, attachments=media_of(at))
                assert result.ok, result.error
                assert result.staging_key is not None
                staged[result.staging_key] = (record, media_of(at))
    return staged


def check(root: Path, staged: Staged) -> None:
    """Every key leads to its call, with its extras and attachments, for a reader that starts afresh."""
    with ParquetStagingSource(root) as source:
        check_source(source, staged)


def check_source(source: ParquetStagingSource, staged: Staged) -> None:
    keys = list(staged)
    for key, snapshot, extras in zip(keys, source.fetch(keys), source.fetch_extras(keys), strict=True):
        record, media = staged[key]
        assert snapshot.model_dump() == record.model_dump(exclude={"extras"})
        assert extras == record.extras
        found = source.fetch_attachments(key)
        assert list(found) == list(media)
        if media:
            assert (source.open_attachment(key, "pixels").read() == media["pixels"]).all()
            assert [source.open_attachment(key, "names", at).read() for at in (0, 1)] == media["names"]


def segments(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.glob("default/*/*.parquet")}


def manifest_of(staged: Staged, rollout_id: str) -> RolloutManifest:
    rows = []
    for key, (record, _) in staged.items():
        if record.rollout_id == rollout_id:
            shared = CallRecord.model_fields.keys() & StagedCallRecord.model_fields.keys()
            values = {name: getattr(record, name) for name in shared}
            rows.append(CallRecord(**values, staging_key=key, response_id=f"resp-{record.model_call_id}"))
    return RolloutManifest(rollout_id=rollout_id, records=rows)


def test_many_segments_become_one_and_every_key_stays_valid(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    before = segments(tmp_path)
    report = compact(PosixStore(tmp_path), rules=AT_ONCE)
    assert len(before) == 9
    assert set(report.moved) == set(report.deleted) == before
    assert segments(tmp_path) == set(report.written)
    assert len(report.written) == 1
    assert report.problems == report.waiting == []
    check(tmp_path, staged)


def test_keys_are_followed_through_compaction_of_compaction(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    for _ in range(4):
        compact(PosixStore(tmp_path), rules=AT_ONCE)
        staged |= stage(tmp_path, rollouts=1, calls=2)
    check(tmp_path, staged)
    assert len(segments(tmp_path)) == 3


def test_old_segments_wait_for_their_delay(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    before = segments(tmp_path)
    clock = [1000.0]
    rules = CompactionRules(delay_s=60.0)

    def run() -> CompactionReport:
        return compact(PosixStore(tmp_path), rules=rules, now=lambda: clock[0])

    assert set(run().waiting) == before
    assert before < segments(tmp_path)
    clock[0] += 59.0
    second = run()
    assert (second.written, second.deleted, set(second.waiting)) == ([], [], before)
    clock[0] += 2.0
    third = run()
    assert (third.written, set(third.deleted)) == ([], before)
    assert not segments(tmp_path) & before
    check(tmp_path, staged)


def test_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    stage(tmp_path)
    compact(PosixStore(tmp_path), rules=AT_ONCE)
    assert compact(PosixStore(tmp_path), rules=AT_ONCE) == CompactionReport()


def test_large_segments_and_other_partitions_are_left_alone(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    report = compact(PosixStore(tmp_path), rules=CompactionRules(max_calls=2, delay_s=0.0))
    assert report == CompactionReport()
    report = compact(PosixStore(tmp_path), partition="other", rules=AT_ONCE)
    assert report == CompactionReport()
    report = compact(PosixStore(tmp_path), rules=CompactionRules(max_calls=4, delay_s=0.0))
    assert len(report.written) == 2
    assert len(segments(tmp_path)) == 3
    check(tmp_path, staged)


def test_the_same_call_from_two_sinks_is_kept_once(tmp_path: Path) -> None:
    staged = stage(tmp_path, rollouts=1) | stage(tmp_path, rollouts=1)
    compact(PosixStore(tmp_path), rules=AT_ONCE)
    check(tmp_path, staged)
    assert len(staged) == 6
    (segment,) = segments(tmp_path)
    assert pq.read_table(tmp_path / segment, columns=["row_kind"])["row_kind"].to_pylist().count("call") == 3


def test_other_media_of_the_same_call_stay_apart(tmp_path: Path) -> None:
    record = StagedRollout().add("c", [1], [2])
    keys = []
    for pixels in (b"one", b"two"):
        with ParquetStagingSink(tmp_path) as sink:
            keys.append(str(sink.stage(record, attachments={"pixels": pixels}).staging_key))
    compact(PosixStore(tmp_path), rules=AT_ONCE)
    with ParquetStagingSource(tmp_path) as source:
        assert [source.open_attachment(key, "pixels").read() for key in keys] == [b"one", b"two"]


def test_a_place_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no staging store"):
        compact(PosixStore(tmp_path / "nothing"))


def test_retired_calls_are_gone_for_everybody_and_dropped_by_compaction(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    kept = {key: value for key, value in staged.items() if value[0].rollout_id != "r1"}
    gone = [key for key in staged if key not in kept]
    with ParquetStagingSource(tmp_path) as reader, ParquetStagingSource(tmp_path) as source:
        reader.fetch(list(staged))
        assert source.retire(manifest_of(staged, "r1")) == 3
        assert source.retire(manifest_of(staged, "r1")) == 0
        assert len(list(tmp_path.glob("retired/*/*.json"))) == 1
        for one in (reader, source):
            for key in gone:
                with pytest.raises(StagedCallMissingError, match="of rollout r1 was retired"):
                    one.fetch([next(iter(kept)), key])
                with pytest.raises(KeyError, match="was retired"):
                    one.fetch_attachments(key)
        check_source(reader, kept)
        report = compact(PosixStore(tmp_path), rules=AT_ONCE)
        assert report.dropped_calls == 3
        for one in (reader, source):
            check_source(one, kept)
            with pytest.raises(StagedCallMissingError, match="was retired"):
                one.fetch(gone[:1])
    assert b"r1" not in b"".join((tmp_path / name).read_bytes() for name in segments(tmp_path))
    with (
        ParquetStagingSource(tmp_path) as fresh,
        pytest.raises(StagedCallMissingError, match=r"compaction of .* removed"),
    ):
        fresh.fetch(gone[:1])


def test_segments_of_retired_calls_only_leave_nothing_but_notes(tmp_path: Path) -> None:
    staged = stage(tmp_path, rollouts=1)
    with ParquetStagingSource(tmp_path) as source:
        assert source.delete(list(staged)) == 3
        assert source.delete(list(staged)) == 0
        report = compact(PosixStore(tmp_path), rules=AT_ONCE)
        assert (report.written, len(report.deleted), report.dropped_calls) == ([], 3, 3)
        assert segments(tmp_path) == set()
        with pytest.raises(StagedCallMissingError, match="retired"):
            source.fetch(list(staged)[:1])


def test_one_retired_call_of_many_is_not_worth_a_new_segment(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    compact(PosixStore(tmp_path), rules=AT_ONCE)
    (first, *_) = staged
    with ParquetStagingSource(tmp_path) as source:
        source.delete([first])
    assert compact(PosixStore(tmp_path), rules=AT_ONCE).written == []
    rules = CompactionRules(delay_s=0.0, retired_share=0.1)
    assert compact(PosixStore(tmp_path), rules=rules).dropped_calls == 1
    del staged[first]
    check(tmp_path, staged)


def test_a_manifest_that_does_not_fit_retires_nothing(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    staged, foreign = stage(here), stage(there, rollouts=1)
    own = manifest_of(staged, "r0")
    other = manifest_of(staged, "r1")
    swapped = [
        row.model_copy(update={"staging_key": more.staging_key})
        for row, more in zip(own.records, other.records, strict=True)
    ]
    with ParquetStagingSource(here) as source:
        with pytest.raises(ForeignKeyError):
            source.retire(RolloutManifest(rollout_id="r0", records=[*own.records, *manifest_of(foreign, "r0").records]))
        with pytest.raises(ValueError, match="is not one of a call with the digest"):
            source.retire(RolloutManifest(rollout_id="r0", records=swapped))
        with pytest.raises(KeyError, match="is no staging key"):
            source.retire(
                RolloutManifest(rollout_id="r0", records=[own.records[0].model_copy(update={"staging_key": "r0/c0"})])
            )
        with pytest.raises(KeyError, match="has no segment"):
            source.delete([next(iter(staged)), list(staged)[1].replace("-1:", "-9:")])
        # a manifest under another rollout's name retires no call of this one
        assert source.retire(RolloutManifest(rollout_id="r2", records=own.records)) == 3
        assert source.retire(RolloutManifest(rollout_id="r9")) == 0
    check(here, staged)


def test_a_damaged_segment_is_left_alone_and_named(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    victim = sorted(segments(tmp_path))[4]
    data = bytearray((tmp_path / victim).read_bytes())
    data[len(data) // 3] ^= 0x55
    (tmp_path / victim).write_bytes(data)
    report = compact(PosixStore(tmp_path), rules=AT_ONCE)
    assert any(victim in problem for problem in report.problems)
    assert (tmp_path / victim).read_bytes() == bytes(data)
    where = victim.split("/")[1] + f"-{int(victim.split('/')[2].split('.')[0])}:"
    check(tmp_path, {key: value for key, value in staged.items() if where not in key})


def prepared(root: Path) -> tuple[Staged, list[str]]:
    staged = stage(root, rollouts=2, calls=2)
    with ParquetStagingSource(root) as source:
        source.retire(manifest_of(staged, "r1"))
    kept = {key: value for key, value in staged.items() if value[0].rollout_id != "r1"}
    return kept, [key for key in staged if key not in kept]


def test_a_crash_at_any_step_loses_nothing_and_the_next_run_completes(tmp_path: Path) -> None:
    kept, gone = prepared(tmp_path / "before")
    shutil.copytree(tmp_path / "before", tmp_path / "whole")
    counting = MortalStore(tmp_path / "whole")
    compact(counting, rules=AT_ONCE)
    assert counting.steps > 20
    for dies_at in range(counting.steps):
        root = tmp_path / str(dies_at)
        shutil.copytree(tmp_path / "before", root)
        with pytest.raises(Killed):
            compact(MortalStore(root, dies_at), rules=AT_ONCE)
        check(root, kept)
        report = compact(PosixStore(root), rules=AT_ONCE)
        assert report.problems == []
        check(root, kept)
        assert len(segments(root)) == 1
        assert not list(root.glob("moved/**/*.plan.json"))
        with ParquetStagingSource(root) as source:
            for key in gone:
                with pytest.raises(StagedCallMissingError):
                    source.fetch([key])


def test_a_killed_process_is_followed_by_one_that_completes(tmp_path: Path) -> None:
    kept, _ = prepared(tmp_path)
    program = """
import os, signal, sys
from pathlib import Path
from gym_ray.storage.opening import open_store
from gym_ray.storage.posix import PosixStore
from gym_ray.token_id_capture.staging.parquet.upkeep.compaction import CompactionRules, compact

class Store(PosixStore):
    left = int(sys.argv[2])
    def create(self, name, data):
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        Store.left -= 1
        super().create(name, data)

compact(Store(Path(sys.argv[1])), rules=CompactionRules(delay_s=0.0))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), "2"], timeout=60, check=False, env=dict(os.environ)
    )
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("moved/default/*.plan.json"))) == 1
    check(tmp_path, kept)
    compact(PosixStore(tmp_path), rules=AT_ONCE)
    check(tmp_path, kept)
    assert len(segments(tmp_path)) == 1


def test_readers_never_fail_while_compaction_runs(tmp_path: Path) -> None:
    staged = stage(tmp_path, rollouts=4)
    over = threading.Event()
    rounds = [0]

    def read() -> None:
        with ParquetStagingSource(tmp_path) as source:
            while True:
                last = over.is_set()
                check_source(source, staged)
                rounds[0] += 1
                if last:
                    return

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            for _ in range(4):
                compact(PosixStore(tmp_path), rules=AT_ONCE)
                staged_more = stage(tmp_path, rollouts=1, calls=2)
        finally:
            over.set()
        for reader in readers:
            reader.result()
    assert rounds[0] >= 3
    check(tmp_path, staged | staged_more)


def test_an_attachment_that_is_moved_while_it_streams_goes_on(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, 40 << 20, np.uint8)
    record = StagedRollout().add("c", [1], [2])
    with ParquetStagingSink(tmp_path) as sink:
        key = str(sink.stage(record, attachments={"first": b"x", "pixels": pixels}).staging_key)
    stage(tmp_path, rollouts=1)
    with ParquetStagingSource(tmp_path) as source:
        parts = source.open_attachment(key, "pixels").chunks()
        found = [bytes(next(parts))]
        assert len(compact(PosixStore(tmp_path), rules=AT_ONCE).deleted) == 4
        found.extend(map(bytes, parts))
    assert b"".join(found) == pixels.tobytes()


def test_two_runs_at_once_lose_nothing(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        for run in [pool.submit(compact, PosixStore(tmp_path), rules=AT_ONCE) for _ in range(2)]:
            run.result()
    check(tmp_path, staged)
    compact(PosixStore(tmp_path), rules=AT_ONCE)
    check(tmp_path, staged)


def test_a_segment_whose_successor_is_missing_stays(tmp_path: Path) -> None:
    stage(tmp_path)
    rules = CompactionRules(delay_s=1e9)
    report = compact(PosixStore(tmp_path), rules=rules)
    before = segments(tmp_path) - set(report.written)
    (tmp_path / report.written[0]).unlink()
    again = compact(PosixStore(tmp_path), rules=AT_ONCE)
    assert len(again.problems) == len(before) == 9
    assert before <= segments(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": "other"}'])
def test_a_damaged_note_is_named(tmp_path: Path, content: bytes) -> None:
    staged = stage(tmp_path)
    compact(PosixStore(tmp_path), rules=AT_ONCE)
    key = next(iter(staged))
    writer, seq = key.split(":")[3].split("-")
    note = tmp_path / "moved/default" / f"{writer}-{seq}.json"
    note.write_bytes(content)
    with ParquetStagingSource(tmp_path) as source, pytest.raises(ValueError, match=f"{note.name} is damaged"):
        source.fetch([key])


def test_notes_that_lead_in_a_circle_are_found_out(tmp_path: Path) -> None:
    staged = stage(tmp_path, rollouts=1, calls=2)
    compact(PosixStore(tmp_path), rules=AT_ONCE)
    for note in tmp_path.glob("moved/default/*.json"):
        document = json.loads(note.read_bytes())
        document["target"] = document["segment"]
        note.write_text(json.dumps(document))
    with ParquetStagingSource(tmp_path) as source, pytest.raises(ValueError, match="in a circle"):
        source.fetch(list(staged)[:1])


def test_a_damaged_retirement_is_named(tmp_path: Path) -> None:
    staged = stage(tmp_path, rollouts=1)
    with ParquetStagingSource(tmp_path) as source:
        source.delete(list(staged)[:1])
    (retired,) = tmp_path.glob("retired/*/*.json")
    retired.write_bytes(b'{"format": "gym-ray-staging"}')
    with ParquetStagingSource(tmp_path) as source, pytest.raises(ValueError, match=f"{retired.name} is damaged"):
        source.fetch(list(staged)[:1])
    with pytest.raises(ValueError, match="is damaged"):
        compact(PosixStore(tmp_path))


def test_a_store_that_vanishes_is_an_error_of_its_own(tmp_path: Path) -> None:
    staged = stage(tmp_path, rollouts=1)

    class Gone(PosixStore):
        def read_tail(self, name: str, length: int) -> tuple[bytes, int]:
            raise StorageMissingError(f"{name} does not exist")

    with (
        ParquetStagingSource("", store=Gone(tmp_path)) as source,
        pytest.raises(KeyError, match="no note of where it went"),
    ):
        source.fetch(list(staged)[:1])


def test_thousands_of_retirements_do_not_slow_a_reader_down(tmp_path: Path) -> None:
    """A reader looks for the retirements of its own rollouts, and never lists the others."""
    listed: list[str] = []

    class Listing(PosixStore):
        def list(self, prefix: str = "") -> list[str]:
            listed.append(prefix)
            return super().list(prefix)

    staged = stage(tmp_path, rollouts=2)
    with ParquetStagingSource(tmp_path) as source:
        source.delete([key for key, (record, _) in staged.items() if record.rollout_id == "r1"])
    (retired,) = tmp_path.glob("retired/*/*.json")
    with ParquetStagingSource("", store=Listing(tmp_path)) as source:
        source.fetch([key for key, (record, _) in staged.items() if record.rollout_id == "r0"])
    (prefix,) = listed
    directory, _, stem = prefix.rpartition("/")
    assert directory.startswith("retired/")
    assert len(stem) > 32
    assert not retired.relative_to(tmp_path).as_posix().startswith(prefix)


def test_an_object_store_is_compacted_as_a_directory_is() -> None:
    where = f"memory://{secrets.token_hex(6)}"
    rollout, keys = StagedRollout("r"), []
    for at in range(3):
        record = rollout.add(f"c{at}", [at], [7], parent=f"c{at - 1}" if at else None)
        with ParquetStagingSink(where) as sink:
            keys.append(str(sink.stage(record, attachments={"pixels": np.full(3, at)}).staging_key))
    with ParquetStagingSource(where) as source:
        assert source.delete(keys[2:]) == 1
        report = compact(open_store(where), rules=AT_ONCE)
        assert (len(report.deleted), report.dropped_calls, report.problems) == (3, 1, [])
        assert source.fetch_prefix_token_ids(keys[:2]).tolist() == [0, 7, 1, 7]
        assert source.open_attachment(keys[1], "pixels").read().tolist() == [1, 1, 1]
        with pytest.raises(StagedCallMissingError, match="retired"):
            source.fetch(keys[2:])
