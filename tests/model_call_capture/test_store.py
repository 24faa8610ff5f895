from __future__ import annotations

import fcntl
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gym_ray.errors import CaptureError, RolloutIdError
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.testing.storage_faults import FaultyCalls, ForgetfulCalls

WAIT_S = 20


def append_many(root: str, writer: str, count: int) -> None:
    store = CaptureStore(root)
    for number in range(count):
        store.record("7-0", {"writer": writer, "number": number, "text": "é" * 300})


def test_no_record_is_lost_between_threads_and_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=append_many, args=(str(tmp_path), f"p{n}", 100)) for n in range(4)]
    for process in processes:
        process.start()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda n: append_many(str(tmp_path), f"t{n}", 100), range(20)))
    for process in processes:
        process.join(WAIT_S)
        assert process.exitcode == 0
    exchanges = CaptureStore(tmp_path).read("7-0")
    found = sorted((exchange["writer"], exchange["number"]) for exchange in exchanges)
    writers = [f"p{n}" for n in range(4)] + [f"t{n}" for n in range(20)]
    assert found == sorted((writer, number) for writer in writers for number in range(100))


def test_a_reader_waits_for_the_append_and_sees_the_whole_line(tmp_path: Path) -> None:
    calls = FaultyCalls()
    calls.sync_gate = threading.Event()
    store = CaptureStore(tmp_path, calls=calls)
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(store.record, "0-0", {"a": 1})
        assert calls.syncs_waiting.wait(WAIT_S)
        reading = pool.submit(CaptureStore(tmp_path).read, "0-0")
        hasty = CaptureStore(tmp_path, lock_timeout_s=0.05).snapshot("0-0")
        assert hasty.data is None
        assert "lock" in (hasty.error or "")
        assert not reading.done()
        calls.sync_gate.set()
        assert reading.result(WAIT_S) == [{"a": 1}]
        writing.result(WAIT_S)


def test_reading_creates_nothing(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path / "absent")
    assert store.read("0-0") == []
    assert store.read_available("0-0") == ([], 0)
    snapshot = store.snapshot("0-0")
    assert (snapshot.data, snapshot.incomplete, snapshot.error) == (None, False, None)
    store.clear("0-0")
    assert not (tmp_path / "absent").exists()


def test_marker_is_sticky_until_cleared(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    store.mark_incomplete("0-0")
    store.mark_incomplete("0-0")
    store.record("0-0", {"a": 1})
    assert store.snapshot("0-0").incomplete
    assert store.incomplete_path_for("0-0").read_bytes() == b""
    store.clear("0-0")
    assert not store.is_incomplete("0-0")
    assert store.read("0-0") == []


def test_clear_truncates_and_touches_no_other_id(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    for rollout_id in ("1-0", "1-0-a1", "11-0"):
        store.record(rollout_id, {"id": rollout_id})
    inode = store.path_for("1-0").stat().st_ino
    store.clear("1-0")
    assert store.path_for("1-0").stat().st_ino == inode
    assert store.read("1-0") == []
    assert store.read("1-0-a1") == [{"id": "1-0-a1"}]
    assert store.read("11-0") == [{"id": "11-0"}]


def test_clear_waits_for_a_writer(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    store.record("0-0", {"a": 1})
    with store.path_for("0-0").open("rb") as writer, ThreadPoolExecutor(1) as pool:
        fcntl.flock(writer, fcntl.LOCK_EX)
        clearing = pool.submit(store.clear, "0-0")
        with pytest.raises(TimeoutError):
            clearing.result(0.05)
        assert store.path_for("0-0").stat().st_size
        fcntl.flock(writer, fcntl.LOCK_UN)
        clearing.result(WAIT_S)
    assert store.read("0-0") == []


def test_records_and_markers_outlive_a_power_cut(tmp_path: Path) -> None:
    calls = ForgetfulCalls()
    store = CaptureStore(tmp_path, calls=calls)
    store.record("0-0", {"a": 1})
    store.mark_incomplete("0-1")
    kept = calls.after_power_cut(tmp_path)
    assert kept == {"0-0.capture.jsonl": b'{"a":1}\n', "0-1.capture.incomplete": b""}
    store.clear("0-0")
    store.clear("0-1")
    assert calls.after_power_cut(tmp_path) == {"0-0.capture.jsonl": b""}


def test_recovery_yields_exactly_the_records_that_end_before_the_cut(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    for number in range(6):
        store.record("0-0", {"n": number, "text": "ü" * number})
    whole = store.path_for("0-0").read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        store.path_for("0-0").write_bytes(whole[:cut])
        complete = sum(end <= cut or (end == cut + 1) for end in ends)
        torn = cut not in (0, *ends) and cut + 1 not in ends
        exchanges, invalid = store.read_available("0-0")
        assert [exchange["n"] for _, exchange in exchanges] == list(range(complete)), cut
        assert invalid == int(torn), cut
        if torn:
            store.record("0-0", {"n": "after"})
            exchanges, invalid = store.read_available("0-0")
            assert [exchange["n"] for _, exchange in exchanges] == [*range(complete), "after"], cut
            assert invalid == 1


def test_errors_name_file_and_record(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    store.path_for("0-0").write_bytes(b'{"a":1}\n{"a":\n')
    with pytest.raises(CaptureError, match=r"0-0\.capture\.jsonl: record 1 is damaged"):
        store.read("0-0")
    store.path_for("0-0").unlink()
    store.path_for("0-0").mkdir()
    with pytest.raises(CaptureError, match=r"0-0\.capture\.jsonl"):
        store.record("0-0", {})
    assert "0-0.capture.jsonl" in (store.snapshot("0-0").error or "")
    with pytest.raises(RolloutIdError, match="'a/b'"):
        store.record("a/b", {})


def test_an_integer_of_any_size_and_half_an_emoji_are_kept(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    exchange = {"big": 2**70, "half": "\ud83d", "key": {"1": None}}
    store.record("0-0", exchange)
    assert store.read("0-0") == [exchange]


def test_no_handle_is_left_open(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    store.record("0-0", {})
    store.read("0-0")
    store.snapshot("0-0")
    store.mark_incomplete("0-0")
    store.clear("0-0")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("act", [CaptureStore.read, CaptureStore.read_available, CaptureStore.clear])
def test_nobody_waits_for_ever_for_a_writer_whose_disk_hangs(
    tmp_path: Path, act: Callable[[CaptureStore, str], object]
) -> None:
    store = CaptureStore(tmp_path, lock_timeout_s=0.05)
    store.record("0-0", {"a": 1})
    with store.path_for("0-0").open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        with pytest.raises(CaptureError, match=r"0-0\.capture\.jsonl.*held its lock for more than 0\.05 s"):
            act(store, "0-0")
    assert store.read("0-0") == [{"a": 1}]


def test_snapshot_gives_up_at_its_deadline(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path, lock_timeout_s=0.2)
    store.record("0-0", {})
    with store.path_for("0-0").open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        begun = time.monotonic()
        assert store.snapshot("0-0").error is not None
        assert time.monotonic() - begun >= 0.2
