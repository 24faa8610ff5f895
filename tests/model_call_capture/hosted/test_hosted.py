"""A capture writer whose records another process writes: its other end here, in this process, dies and comes back."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import CaptureError
from gym_ray.model_call_capture.backends import FileBackend
from gym_ray.model_call_capture.hosted.backend import HostedBackend
from gym_ray.model_call_capture.hosted.channel import HostedRecord, Receipt
from gym_ray.model_call_capture.hosted.files import HostedFiles
from gym_ray.model_call_capture.local_adoption import local_logs
from gym_ray.model_call_capture.open_log import list_logs
from gym_ray.model_call_capture.opening import open_capture_writer
from gym_ray.model_call_capture.registry import RegisteredWriter, WriterRegistry
from gym_ray.model_call_capture.segments.backend import SegmentBackend
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.testing.begun_calls import begun_call, leave_as_killed
from gym_ray.testing.storage_faults import FaultyCalls
from gym_ray.testing.waiting import until


class Channel:
    """Everything is pickled on its way; a test says what happens before and after the other end does it."""

    def __init__(self, files: HostedFiles) -> None:
        self.files = files
        self.place = files.place
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        self.batches: list[int] = []

    def append_many(self, records: Sequence[HostedRecord], *, again: bool = False) -> Sequence[Receipt]:
        self.batches.append(len(records))
        self.before()
        receipts: Sequence[Receipt] = pickle.loads(
            pickle.dumps(self.files.append_many(pickle.loads(pickle.dumps(records)), again=again))
        )
        self.after()
        return receipts

    def withdraw(self, call_ids: Sequence[str]) -> None:
        self.files.withdraw(call_ids)

    def mark_incomplete(self, rollout_id: str) -> None:
        self.files.mark_incomplete(rollout_id)

    def lost_calls(self, writer_id: str, open_calls: Mapping[str, str]) -> Mapping[str, list[str]]:
        return self.files.lost_calls(writer_id, open_calls)

    def register(self, writer: RegisteredWriter) -> None:
        self.files.register(pickle.loads(pickle.dumps(writer)))

    def remove_writer(self, writer_id: str) -> None:
        self.files.remove_writer(writer_id)


class Site:
    def __init__(self, directory: Path) -> None:
        self.root, self.local_dir = directory / "captures", directory / "local"
        self.calls = FaultyCalls()
        self.files = HostedFiles(self.root, timeout_s=20, calls=self.calls)
        self.channel, self.store = Channel(self.files), CaptureStore(self.root)

    def start(self, **options: Any) -> CaptureWriter:
        backend = HostedBackend(self.channel, local_dir=self.local_dir)
        writer = CaptureWriter(backend, server_name="policy", url="http://policy:1", run_token="token", **options)
        writer.start()
        return writer

    def recorded(self, rollout_id: str = "0-0") -> list[str]:
        exchanges, invalid = self.store.read_available(rollout_id)
        assert not invalid
        return [exchange["model_call_id"] for _, exchange in exchanges]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def record(number: int, rollout_id: str = "0-0") -> HostedRecord:
    return HostedRecord(rollout_id, f"{number:032x}", b'{"model_call_id":"%032x"}\n' % number)


async def test_a_record_is_in_its_file_when_its_answer_leaves(site: Site) -> None:
    writer = site.start()
    first, second = begun_call(writer), begun_call(writer)
    await writer.commit(first)
    await writer.commit(second)
    answer = await writer.quiesce(["0-0"], 0)
    data = site.store.path_for("0-0").read_bytes()
    for (call_id, file, offset, length), exchange in zip(
        answer["rollouts"]["0-0"]["recorded"], (first, second), strict=True
    ):
        assert (call_id, file) == (exchange.call_id, "0-0.capture.jsonl")
        assert call_id.encode() in data[offset : offset + length]
    assert "last_segment" not in answer
    (registered,), _ = WriterRegistry(site.root).all()
    assert (registered.writer_id, registered.open_log) == (writer.writer_id, None)
    await asyncio.to_thread(writer.close)
    assert WriterRegistry(site.root).all() == ([], [])


async def test_what_waits_goes_in_one_batch(site: Site) -> None:
    writer = site.start()
    gate = threading.Event()
    site.channel.before = lambda: gate.wait(30)
    futures = [writer.submit(begun_call(writer, "0-0"))]
    await until(lambda: site.channel.batches == [1])
    futures += [writer.submit(begun_call(writer, f"{number}-0")) for number in range(1, 16)]
    gate.set()
    await asyncio.gather(*futures)
    assert sum(site.channel.batches) == 16
    assert len(site.channel.batches) <= 3
    await asyncio.to_thread(writer.close)


async def test_a_channel_that_fails_marks(site: Site) -> None:
    writer = site.start()

    def fail() -> None:
        raise CaptureError("nobody there")

    site.channel.before = fail
    await writer.commit(begun_call(writer))
    await until(lambda: site.store.is_incomplete("0-0"))
    assert writer.counts.failed == 1
    await asyncio.to_thread(writer.close)


async def test_a_file_that_cannot_be_written_fails_its_own_records_only(site: Site) -> None:
    (site.root / "1-0.capture.jsonl").mkdir()
    writer = site.start()
    futures = [writer.submit(begun_call(writer, rollout_id)) for rollout_id in ("0-0", "1-0", "2-0")]
    await asyncio.gather(*futures)
    assert (writer.counts.recorded, writer.counts.failed) == (2, 1)
    await until(lambda: site.store.is_incomplete("1-0"))
    assert not site.store.is_incomplete("0-0")
    await asyncio.to_thread(writer.close)


async def test_withdrawn_calls_reach_no_file_that_is_cleared_afterwards(site: Site) -> None:
    writer = site.start()
    begun, gate = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        gate.wait(30)

    site.channel.before = hold  # the batch is on its way, and the other end does not know of it yet
    future = writer.submit(begun_call(writer))
    await asyncio.to_thread(begun.wait, 30)
    await writer.quiesce([], 0, ["0-0"])
    gate.set()
    await future
    assert site.recorded() == []
    assert not site.store.is_incomplete("0-0")
    assert writer.counts.withdrawn == 1
    await asyncio.to_thread(writer.close)


def test_a_batch_that_is_sent_again_is_written_once(site: Site) -> None:
    records = [record(number, f"{number % 2}-0") for number in range(6)]
    first = site.files.append_many(records)
    assert site.files.append_many(records, again=True) == first
    assert site.files.append_many([*records, record(6)])[:6] == first
    restarted = HostedFiles(site.root)  # remembers nothing
    assert restarted.append_many([*records, record(7)], again=True)[:6] == first
    assert site.recorded("0-0") == [f"{number:032x}" for number in (0, 2, 4, 6, 7)]
    assert site.recorded("1-0") == [f"{number:032x}" for number in (1, 3, 5)]
    for files in (restarted, site.files):
        files.close()


def test_half_a_batch_is_completed_by_the_process_that_follows(site: Site) -> None:
    kept, lost = record(1), record(2, "1-0")
    site.files.append_many([kept])
    with site.store.path_for("1-0").open("wb") as torn:
        torn.write(lost.line[:-5])
    restarted = HostedFiles(site.root)
    receipts = restarted.append_many([kept, lost], again=True)
    assert [receipt.error for receipt in receipts] == ["", ""]
    assert site.recorded() == [kept.call_id]
    data = site.store.path_for("1-0").read_bytes()
    assert data.endswith(b"\n" + lost.line)
    assert receipts[1].offset == len(data) - len(lost.line)
    restarted.close()
    site.files.close()


def test_a_record_that_was_found_is_synced_before_it_is_acknowledged(site: Site) -> None:
    class Counting(FaultyCalls):
        synced = 0

        def sync(self, fd: int) -> None:
            type(self).synced += 1
            super().sync(fd)

    site.files.append_many([record(1)])
    calls = Counting()
    restarted = HostedFiles(site.root, calls=calls)
    before = Counting.synced
    restarted.append_many([record(1)], again=True)
    assert Counting.synced > before
    restarted.close()
    site.files.close()


def test_a_file_that_hangs_is_said_in_time(site: Site) -> None:
    files = HostedFiles(site.root / "slow", timeout_s=0.05, calls=site.calls)
    site.calls.sync_gate = threading.Event()
    (receipt,) = files.append_many([record(1)])
    assert receipt.offset is None
    assert "not known to be durable after 0.05 s" in receipt.error
    with pytest.raises(CaptureError, match="are still being written"):
        files.withdraw([record(1).call_id])
    site.calls.sync_gate.set()
    files.close()
    site.files.close()


async def test_the_next_server_marks_exactly_what_its_predecessor_lost(site: Site) -> None:
    writer = site.start()
    kept = begun_call(writer, "0-0")
    begun_call(writer, "1-0")
    log = writer._running.backend.open_log  # type: ignore[union-attr]
    before = log.path.read_bytes()
    await writer.commit(kept)
    await until(lambda: kept.call_id not in log._open)
    with log._lock:
        log._calls.write_at(log._fd, before, 0)  # as if killed before the end was noted
    leave_as_killed(writer)
    successor = site.start()
    assert site.store.is_incomplete("1-0")
    assert not site.store.is_incomplete("0-0")
    registered, _ = WriterRegistry(site.root).all()
    assert [entry.writer_id for entry in registered] == [successor.writer_id]
    assert [path.stem for path in list_logs(local_logs(site.local_dir, site.channel.place))] == [successor.writer_id]
    await asyncio.to_thread(successor.close)


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CaptureError, match="file"):
        HostedFiles(tmp_path / "file" / "x")


def test_each_place_has_its_backend(site: Site, tmp_path: Path) -> None:
    def opened(where: str, **options: Any) -> CaptureWriter:
        return open_capture_writer(
            CaptureLocation.of(where),
            server_name="policy",
            url=None,
            run_token=None,
            capture_timeout_s=30,
            redactor=None,
            local_dir=site.local_dir,
            **options,
        )

    backends = {
        FileBackend: opened(str(tmp_path / "direct")),
        SegmentBackend: opened("memory://opening/captures"),
        HostedBackend: opened(str(site.root), channel=site.channel),
    }
    for kind, writer in backends.items():
        assert type(writer._backend) is kind
        writer.close()
    with pytest.raises(CaptureError, match="there are no capture files"):
        _ = backends[HostedBackend].store
