"""Compaction of token segments changes nothing that anybody is told, whenever it dies, and frees what is dead."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gym_ray.errors import RolloutFrozenError, RolloutRetiredError, StorageMissingError
from gym_ray.storage.opening import open_store
from gym_ray.storage.posix import PosixStore
from gym_ray.storage.store import SegmentStore
from gym_ray.testing.mortal_store import Killed, MortalStore
from gym_ray.testing.token_source import call_entry
from gym_ray.testing.watched_store import WatchedStore
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot
from gym_ray.token_id_capture.staging.parquet import (
    CompactionReport,
    CompactionRules,
    ParquetLineageResolver,
    ParquetTokenSink,
    ParquetTokenSource,
    compact,
)

AT_ONCE = CompactionRules(delay_s=0.0)
Snapshots = dict[str, TokenCaptureSnapshot]


def compacted(root: Path, rules: CompactionRules = AT_ONCE, **options: Any) -> CompactionReport:
    report = compact(PosixStore(root), rules=rules, **options)
    assert report.problems == []
    return report


def segments(root: Path, kind: str = "*") -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.glob(f"default/*/*.{kind}.parquet")}


async def filled(root: Path, rollouts: int = 3, calls: int = 3) -> None:
    """Put calls one by one, so that each is in a segment of its own; the last one of each rollout stays open."""
    sink = ParquetTokenSink(root)
    for rollout in range(rollouts):
        for at in range(calls):
            await sink.begin_call(f"r{rollout}", f"c{at}")
            await sink.put(call_entry(f"c{at}", [rollout, at], [7, 8 + at], rollout_id=f"r{rollout}"))
        await sink.begin_call(f"r{rollout}", "open")
        await sink.mark_incomplete(f"r{rollout}", "lost")
    await sink.close()


async def frozen(root: Path, *rollout_ids: str) -> Snapshots:
    source = ParquetTokenSource(root)
    found = {rollout_id: await source.freeze(rollout_id) for rollout_id in rollout_ids}
    await source.close()
    return found


async def dropped(root: Path, rollout_id: str) -> None:
    source = ParquetTokenSource(root)
    snapshot = await source.freeze(rollout_id)
    assert await source.drop(rollout_id, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    await source.close()


def same(one: TokenCaptureSnapshot, other: TokenCaptureSnapshot) -> bool:
    assert list(one.entries) == list(other.entries)
    assert (one.snapshot_id, one.version, one.incomplete) == (other.snapshot_id, other.version, other.incomplete)
    assert list(one.problems) == list(other.problems)
    return True


async def test_many_segments_become_two_and_every_snapshot_stays_as_it_was(tmp_path: Path) -> None:
    await filled(tmp_path)
    before = await frozen(tmp_path, "r0", "r1")
    old = segments(tmp_path)
    report = compacted(tmp_path)
    assert len(old) > 20
    assert set(report.moved) == set(report.deleted) == old
    assert segments(tmp_path) == set(report.written)
    assert len(report.written) == 2
    assert report.dropped_rows == 0
    after = await frozen(tmp_path, "r0", "r1", "r2")
    assert all(same(before[rollout_id], after[rollout_id]) for rollout_id in before)
    assert [entry.model_call_id for entry in after["r2"].entries] == ["c0", "c1", "c2"]
    source = ParquetTokenSource(tmp_path)
    assert await source.drop("r0", snapshot_id=before["r0"].snapshot_id, version=before["r0"].version)
    assert not await source.drop("r1", snapshot_id=before["r1"].snapshot_id, version=before["r1"].version + 1)
    await source.close()
    assert compacted(tmp_path).dropped_rows == 8
    assert compacted(tmp_path) == CompactionReport()


async def test_rows_of_dropped_rollouts_and_of_cleared_lives_are_gone_from_the_disk(tmp_path: Path) -> None:
    await filled(tmp_path)
    await dropped(tmp_path, "r1")
    source, sink = ParquetTokenSource(tmp_path), ParquetTokenSink(tmp_path)
    await asyncio.to_thread(source.delete, "r2")
    await sink.put(call_entry("new", [1], [2], rollout_id="r2"))
    before = await source.freeze("r2")
    report = compacted(tmp_path)
    assert report.dropped_rows == 16
    left = [one for name in segments(tmp_path) for one in pq.read_table(tmp_path / name)["rollout_id"].to_pylist()]
    assert (left.count("r0"), left.count("r1"), left.count("r2")) == (8, 0, 2)  # of r2 the clearing and the new record
    assert same(before, (await frozen(tmp_path, "r2"))["r2"])
    assert [entry.model_call_id for entry in before.entries] == ["new"]
    with pytest.raises(RolloutRetiredError):
        await source.freeze("r1")
    with pytest.raises(RolloutRetiredError):
        await sink.put(call_entry("late", [1], [2], rollout_id="r1"))
    assert await sink.has_evidence("r1")
    await asyncio.to_thread(source.delete, "r1")
    assert not await sink.has_evidence("r1")
    compacted(tmp_path)
    assert not await sink.has_evidence("r1")
    await sink.close()
    await source.close()


async def test_a_rollout_that_was_dropped_and_begins_anew_stays_new_while_old_segments_wait(tmp_path: Path) -> None:
    await filled(tmp_path)
    reader = ParquetTokenSource(tmp_path)
    await reader.freeze("r0")
    await dropped(tmp_path, "r1")
    waits = CompactionRules(delay_s=60.0)
    report = compacted(tmp_path, waits, now=lambda: 1000.0)
    assert (report.deleted, set(report.waiting)) == ([], set(report.moved))
    await asyncio.to_thread(reader.delete, "r1")
    for source in (reader, ParquetTokenSource(tmp_path)):
        snapshot = await source.freeze("r1")
        assert list(snapshot.entries) == []
        assert not snapshot.incomplete
        await source.close()
    assert set(compacted(tmp_path, waits, now=lambda: 1061.0).deleted) == set(report.moved)


async def test_old_segments_go_in_time_however_often_compaction_runs(tmp_path: Path) -> None:
    clock = [1000.0]
    waits = CompactionRules(delay_s=60.0)
    await filled(tmp_path)
    old = segments(tmp_path)
    for _ in range(7):
        compacted(tmp_path, waits, now=lambda: clock[0])
        await filled(tmp_path, rollouts=1, calls=1)
        clock[0] += 10.0
    assert not segments(tmp_path) & old


async def test_sinks_that_go_on_are_found_though_no_listing_shows_anything(tmp_path: Path) -> None:
    sink = ParquetTokenSink(tmp_path)
    blind = WatchedStore(PosixStore(tmp_path))
    blind.hides = lambda name: not name.startswith("frozen")
    early = ParquetTokenSource(tmp_path, store=blind)
    put = []
    for at in range(4):
        for _ in range(6):
            put.append(f"c{len(put):02}")
            await sink.put(call_entry(put[-1], [at], [2], rollout_id="r"))
        compacted(tmp_path)
        put.append(f"c{len(put):02}")
        await sink.put(call_entry(put[-1], [at], [2], rollout_id="r"))
        late = ParquetTokenSource(tmp_path, store=blind)
        for source in (early, late):
            assert [entry.model_call_id for entry in await seen(source)] == put
        await late.close()
        shutil.rmtree(tmp_path / "frozen")  # so that the sink may go on
    await early.close()
    await sink.close()


async def seen(source: ParquetTokenSource) -> Any:
    return (await source.freeze("r")).entries


async def test_the_resolver_sees_each_record_once(tmp_path: Path) -> None:
    resolver = ParquetLineageResolver(tmp_path)
    fresh_resolver = ParquetLineageResolver(tmp_path)
    sink = ParquetTokenSink(tmp_path)
    found: list[str] = []
    cursor = None
    for at in range(12):
        await sink.put(call_entry(f"c{at:02}", [at], [2], rollout_id="r"))
        if at % 3 == 2:
            fetched = await asyncio.to_thread(resolver.fetch_since, "r", cursor)
            cursor = fetched.cursor
            found += [entry.model_call_id for entry in fetched.entries]
        if at % 4 == 1:
            compacted(tmp_path)
    assert found == [f"c{at:02}" for at in range(12)]
    compacted(tmp_path)
    assert list((await asyncio.to_thread(resolver.fetch_since, "r", cursor)).entries) == []
    whole = await asyncio.to_thread(fresh_resolver.fetch_since, "r", None)
    assert [entry.model_call_id for entry in whole.entries] == found
    await sink.put(call_entry("c12", [12], [2], rollout_id="r"))
    last = await asyncio.to_thread(fresh_resolver.fetch_since, "r", whole.cursor)
    assert [entry.model_call_id for entry in last.entries] == ["c12"]
    assert await resolver.has_evidence("r")
    for one in (resolver, fresh_resolver, sink):
        await one.close()


async def test_a_call_is_known_again_after_compaction(tmp_path: Path) -> None:
    sink, source = ParquetTokenSink(tmp_path), ParquetTokenSource(tmp_path)
    entry = call_entry("c0", [1], [2], rollout_id="r")
    await sink.put(entry)
    await sink.put(call_entry("c1", [1], [2], rollout_id="r"))
    compacted(tmp_path)
    await sink.put(entry)
    snapshot = await source.freeze("r")
    assert snapshot.version == 3
    with pytest.raises(RolloutFrozenError):
        await sink.put(call_entry("c2", [1], [2], rollout_id="r"))
    await sink.close()
    await source.close()


async def test_a_segment_that_is_gone_for_no_reason_is_missed(tmp_path: Path) -> None:
    await filled(tmp_path)
    source = ParquetTokenSource(tmp_path)
    await source.freeze("r0")
    for name in segments(tmp_path, "tokens"):
        (tmp_path / name).unlink()
    with pytest.raises(Exception, match="r1") as caught:
        await source.freeze("r1")
    assert isinstance(caught.value.__cause__, StorageMissingError)
    await source.close()


async def test_an_old_segment_whose_rows_are_not_in_the_new_one_stays(tmp_path: Path) -> None:
    await filled(tmp_path, rollouts=1)
    kept = segments(tmp_path, "tokens")
    waits = CompactionRules(delay_s=1000.0)
    compacted(tmp_path, waits)
    other = tmp_path / "other"
    await filled(other, rollouts=1, calls=4)
    victim = min(kept)
    # a segment of another history under the same name: its rows are nowhere else
    compacted(other)
    shutil.copy(other / next(iter(segments(other, "tokens"))), tmp_path / victim)
    report = compact(PosixStore(tmp_path), rules=AT_ONCE)
    assert any(f"{victim}" in problem for problem in report.problems)
    assert (tmp_path / victim).exists()


async def test_a_crash_at_any_step_changes_nothing_and_the_next_run_completes(tmp_path: Path) -> None:
    start = tmp_path / "before"
    sink = ParquetTokenSink(start)
    for rollout_id in ("r0", "r1", "r2"):
        await sink.put(call_entry("c0", [1], [2], rollout_id=rollout_id))
        await sink.mark_incomplete(rollout_id, "lost")
    await sink.close()
    await dropped(start, "r1")
    source = ParquetTokenSource(start)
    await asyncio.to_thread(source.delete, "r2")
    await source.close()
    before = await frozen(start, "r0", "r2")
    rules = CompactionRules(delay_s=0.0, forget_dropped_after_s=0.0)
    shutil.copytree(start, tmp_path / "whole")
    counting = MortalStore(tmp_path / "whole")
    assert compact(counting, rules=rules).forgotten == ["r1"]
    assert counting.steps > 20
    for dies_at in range(counting.steps):
        root = tmp_path / str(dies_at)
        shutil.copytree(start, root)
        with pytest.raises(Killed):
            compact(MortalStore(root, dies_at), rules=rules)
        after = await frozen(root, "r0", "r2")
        assert all(same(before[rollout_id], after[rollout_id]) for rollout_id in before)
        for _ in range(2):
            compacted(root, rules)
            after = await frozen(root, "r0", "r2")
            assert all(same(before[rollout_id], after[rollout_id]) for rollout_id in before)
        assert len(segments(root)) <= 4
        assert not list((root / "frozen").glob("**/r1.json"))
        assert not (await frozen(root, "r1"))["r1"].entries
        shutil.rmtree(root)


KILLED = """
import os, signal, sys
from pathlib import Path
from gym_ray.storage.posix import PosixStore
from gym_ray.token_id_capture.staging.parquet import CompactionRules, compact

class Store(PosixStore):
    left = int(sys.argv[2])
    def delete(self, name):
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        Store.left -= 1
        super().delete(name)

compact(Store(Path(sys.argv[1])), rules=CompactionRules(delay_s=0.0))
"""


async def test_a_killed_process_is_followed_by_one_that_completes(tmp_path: Path) -> None:
    await filled(tmp_path, rollouts=2, calls=2)
    before = await frozen(tmp_path, "r0", "r1")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", KILLED, str(tmp_path), "3"],
        timeout=120,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == -signal.SIGKILL
    for _ in range(2):
        after = await frozen(tmp_path, "r0", "r1")
        assert all(same(before[rollout_id], after[rollout_id]) for rollout_id in before)
        compacted(tmp_path)
    assert len(segments(tmp_path)) == 2


async def test_a_run_that_was_overtaken_publishes_nothing(tmp_path: Path) -> None:
    """Else rows that were dropped, removed and forgotten meanwhile would be there again."""
    await filled(tmp_path)
    store = WatchedStore(PosixStore(tmp_path))
    reports: list[CompactionReport] = []
    rules = CompactionRules(delay_s=0.0, forget_dropped_after_s=0.0)

    def overtake(name: str) -> None:
        if name.endswith(".tokens.parquet") and not reports:
            reports.append(CompactionReport())
            asyncio.run(dropped(tmp_path, "r1"))
            reports[0] = compacted(tmp_path, rules)

    store.before["stream"] = overtake
    with ThreadPoolExecutor(1) as pool:
        late = await asyncio.wrap_future(pool.submit(compact, store, rules=AT_ONCE))
    assert reports[0].forgotten == ["r1"]
    assert late.written == []
    assert any("a later run of compaction took over" in problem for problem in late.problems)
    assert not (await frozen(tmp_path, "r1"))["r1"].entries
    assert len((await frozen(tmp_path, "r0"))["r0"].entries) == 3


async def test_two_runs_at_once_lose_nothing(tmp_path: Path) -> None:
    await filled(tmp_path)
    before = await frozen(tmp_path, "r0", "r1", "r2")
    with ThreadPoolExecutor(2) as pool:
        for run in [pool.submit(compact, PosixStore(tmp_path), rules=AT_ONCE) for _ in range(2)]:
            await asyncio.wrap_future(run)
    compact(PosixStore(tmp_path), rules=AT_ONCE)
    after = await frozen(tmp_path, "r0", "r1", "r2")
    assert all(same(before[rollout_id], after[rollout_id]) for rollout_id in before)


async def test_readers_and_writers_never_notice(tmp_path: Path) -> None:
    await filled(tmp_path, rollouts=2, calls=3)
    before = await frozen(tmp_path, "r0", "r1")
    over = threading.Event()
    rounds = [0]

    async def read() -> None:
        source, resolver = ParquetTokenSource(tmp_path), ParquetLineageResolver(tmp_path)
        seen_calls: list[str] = []
        cursor = None
        while True:
            last = over.is_set()
            for rollout_id, snapshot in before.items():
                assert same(snapshot, await source.freeze(rollout_id))
            fetched = await asyncio.to_thread(resolver.fetch_since, "w", cursor)
            cursor = fetched.cursor
            seen_calls += [entry.model_call_id for entry in fetched.entries]
            assert len(set(seen_calls)) == len(seen_calls)
            rounds[0] += 1
            if last:
                assert seen_calls == [f"c{at:03}" for at in range(40)]
                break
        await source.close()
        await resolver.close()

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(asyncio.run, read()) for _ in range(2)]
        try:
            sink = ParquetTokenSink(tmp_path)
            for at in range(40):
                await sink.put(call_entry(f"c{at:03}", [at], [2], rollout_id="w"))
                if at % 8 == 7:
                    await asyncio.to_thread(compacted, tmp_path, CompactionRules(delay_s=0.5))
            await sink.close()
        finally:
            over.set()
        for reader in readers:
            await asyncio.wrap_future(reader)
    assert rounds[0] >= 2


async def test_freeing_one_rollout_of_many_reads_little(tmp_path: Path) -> None:
    """Segments that are large enough are told by their footers, and only the one with the dead rows is read."""
    sink = ParquetTokenSink(tmp_path)
    for start in range(0, 320, 64):
        await asyncio.gather(
            *[
                sink.put(call_entry("c", range(400), range(200), rollout_id=f"r{start + at // 32}-{at}"))
                for at in range(64)
            ]
        )
    await sink.close()
    rules = CompactionRules(max_calls=64, delay_s=0.0, retired_share=0.0)
    while compacted(tmp_path, rules).written:
        pass
    everything = sum((tmp_path / name).stat().st_size for name in segments(tmp_path, "tokens"))
    for at in range(32):
        await dropped(tmp_path, f"r0-{at}")
    store = WatchedStore(PosixStore(tmp_path))
    report = compact(store, rules=rules)
    assert (report.problems, report.dropped_rows) == ([], 32)
    columns = [request for request in store.requests if request.method == "read_range"]
    assert {request.name for request in columns if request.name.endswith(".tokens.parquet")} <= set(report.moved)
    assert len(report.moved) <= 3 < len(segments(tmp_path, "tokens"))
    assert sum(request.nbytes for request in columns) < everything / 2


async def test_markers_of_dropped_rollouts_go_when_they_are_old_and_nothing_is_left(tmp_path: Path) -> None:
    await filled(tmp_path)
    await dropped(tmp_path, "r1")
    sink = ParquetTokenSink(tmp_path)
    young = CompactionRules(delay_s=0.0, forget_dropped_after_s=3600.0)
    assert compacted(tmp_path, young).forgotten == []
    with pytest.raises(RolloutRetiredError):
        await sink.put(call_entry("late", [1], [2], rollout_id="r1"))
    waits = CompactionRules(delay_s=1e9, forget_dropped_after_s=0.0)
    assert compacted(tmp_path, waits).forgotten == []  # what the late writer left is still there
    report = compacted(tmp_path, CompactionRules(delay_s=0.0, forget_dropped_after_s=0.0))
    assert report.forgotten == ["r1"]
    assert not await sink.has_evidence("r1")
    await sink.put(call_entry("again", [1], [2], rollout_id="r1"))
    source = ParquetTokenSource(tmp_path)
    assert [entry.model_call_id for entry in (await source.freeze("r1")).entries] == ["again"]
    await source.close()
    await sink.close()


async def test_nothing_is_forgotten_where_rows_may_be(tmp_path: Path) -> None:
    await filled(tmp_path)
    await dropped(tmp_path, "r1")
    rules = CompactionRules(delay_s=0.0, forget_dropped_after_s=0.0)
    report = compact(PosixStore(tmp_path), partition="default", rules=rules)
    assert (report.forgotten, len(report.problems)) == ([], 1)
    assert "only one partition" in report.problems[0]
    whole = segments(tmp_path, "tokens")
    sink = ParquetTokenSink(tmp_path)
    await sink.put(call_entry("more", [1], [2], rollout_id="r0"))
    await sink.close()
    (damaged,) = segments(tmp_path, "tokens") - whole
    (tmp_path / damaged).write_bytes((tmp_path / damaged).read_bytes()[:-20])
    report = compact(PosixStore(tmp_path), rules=rules)
    assert report.forgotten == []
    assert any(damaged in problem for problem in report.problems)
    assert any("some segments cannot be read" in problem for problem in report.problems)
    assert (tmp_path / damaged).exists()


async def test_a_damaged_row_stays_damaged(tmp_path: Path) -> None:
    await filled(tmp_path, rollouts=1)
    (victim, *_) = sorted(segments(tmp_path, "tokens"))
    data = bytearray((tmp_path / victim).read_bytes())
    data[20] ^= 0x40
    (tmp_path / victim).write_bytes(bytes(data))
    before = (await frozen(tmp_path, "r0"))["r0"]
    assert before.incomplete
    report = compact(PosixStore(tmp_path), rules=AT_ONCE)
    assert any(victim in problem for problem in report.problems)
    after = (await frozen(tmp_path, "r0"))["r0"]
    assert list(after.entries) == list(before.entries)
    assert [problem.reason for problem in after.problems] == [problem.reason for problem in before.problems]


@pytest.mark.parametrize("url", ["memory://{}/compacted", "file://{}"])
async def test_it_works_on_other_stores(url: str, tmp_path: Path) -> None:
    store: SegmentStore = open_store(url.format(tmp_path))
    sink, source = ParquetTokenSink("", store=store), ParquetTokenSource("", store=store)
    for at in range(5):
        await sink.put(call_entry(f"c{at}", [at], [2], rollout_id="r"))
    assert len(compact(store, rules=AT_ONCE).deleted) == 5
    assert len((await source.freeze("r")).entries) == 5
    await sink.close()
    await source.close()
