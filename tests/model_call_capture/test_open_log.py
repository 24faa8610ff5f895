from __future__ import annotations

import os
from pathlib import Path

import pytest

from gym_ray.errors import CaptureError
from gym_ray.model_call_capture.open_log import (
    OpenLog,
    list_logs,
    living_open_calls,
    log_name,
    read_open_calls,
    take_dead,
)
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.local_calls import LocalFileCalls
from gym_ray.testing.storage_faults import FaultyCalls


def call(number: int) -> str:
    return f"{number:032x}"


def test_begin_and_end(tmp_path: Path) -> None:
    log = OpenLog(tmp_path, "s-1.log")
    log.begin(call(1), "0-0")
    log.begin(call(2), "0-1")
    log.end([call(1)])
    log.begin(call(3), "0-2")
    assert living_open_calls(log.path) == {call(2): "0-1", call(3): "0-2"}
    log.end([call(2), call(3), call(99)])
    assert living_open_calls(log.path) == {}
    log.close()
    assert list_logs(tmp_path) == []


def test_a_living_writer_is_never_taken_for_dead(tmp_path: Path) -> None:
    log = OpenLog(tmp_path, "s-1.log")
    log.begin(call(1), "0-0")
    with take_dead(log.path) as dead:
        assert dead is None
    log.close()


def test_a_dead_writer_tells_what_was_open_to_several_readers(tmp_path: Path) -> None:
    log = OpenLog(tmp_path, "s-1.log")
    log.begin(call(1), "0-0")
    log.begin(call(2), "0-1")
    log.close()  # with something open the log stays, and the lock is gone, as after a kill
    with take_dead(log.path) as first, take_dead(log.path) as second:
        assert first is not None
        assert second is not None
        assert first.open_calls == second.open_calls == {call(1): "0-0", call(2): "0-1"}
        first.clear("0-0")
    with take_dead(log.path) as dead:
        assert dead is not None
        assert dead.open_calls == {call(2): "0-1"}
        dead.remove()
    with take_dead(log.path) as dead:
        assert dead is None
    assert living_open_calls(log.path) is None


def test_the_log_stays_small_and_keeps_what_is_open(tmp_path: Path) -> None:
    log = OpenLog(tmp_path, "s-1.log", max_bytes=4096)
    log.begin(call(0), "long-lived")
    for number in range(1, 2000):
        log.begin(call(number), "0-0")
        assert list(living_open_calls(log.path) or {}) == [call(0), call(number)]
        log.end([call(number)])
        assert log.path.stat().st_size == 4096
        with take_dead(log.path) as dead:
            assert dead is None
    log.end([call(0)])
    assert living_open_calls(log.path) == {}
    log.close()
    assert list(log.path.parent.iterdir()) == []


def test_more_open_calls_than_the_log_holds_make_it_larger(tmp_path: Path) -> None:
    log = OpenLog(tmp_path, "s-1.log", max_bytes=4096)
    expected = {call(number): "0-0" for number in range(500)}
    for call_id in expected:
        log.begin(call_id, "0-0")
    assert living_open_calls(log.path) == expected
    log.close()


def test_ends_without_records_are_never_invented() -> None:
    whole = b"B 1 a\nB 2 b\nE 1\nC b\nB 3 b\n"
    for cut in range(len(whole) + 1):
        lines = whole[:cut].count(b"\n")
        expected = [{}, {"1": "a"}, {"1": "a", "2": "b"}, {"2": "b"}, {}, {"3": "b"}][lines]
        assert read_open_calls(whole[:cut]) == expected


def test_names() -> None:
    assert log_name("policy model/x", "ab") == "policy_model_x-ab.log"


def test_a_late_line_reaches_no_other_file(tmp_path: Path) -> None:
    log = OpenLog(tmp_path, "s-1.log")
    log.close()
    with (tmp_path / "other").open("wb"), pytest.raises(OSError, match="is closed"):
        log.begin(call(1), "0-0")
    assert (tmp_path / "other").read_bytes() == b""


@pytest.mark.parametrize("kind", [FileCalls, LocalFileCalls])
def test_a_log_that_somebody_cut_costs_no_process_and_no_later_line(tmp_path: Path, kind: type[FileCalls]) -> None:
    log = OpenLog(tmp_path, "s-1.log", calls=kind())
    log.begin(call(1), "0-0")
    os.truncate(log.path, 0)
    log.begin(call(2), "0-1")
    assert living_open_calls(log.path) == {call(2): "0-1"}
    log.end([call(1), call(2)])
    log.close()


def test_a_line_that_was_cut_short_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = FileCalls()
    log = OpenLog(tmp_path, "s-1.log", calls=calls)
    with monkeypatch.context() as patched:
        patched.setattr(calls, "write_at", lambda fd, data, offset: os.pwrite(fd, data[:5], offset))
        with pytest.raises(OSError, match="5 bytes of a line"):
            log.begin(call(1), "0-0")
    log.begin(call(2), "0-1")
    assert living_open_calls(log.path) == {call(2): "0-1"}
    log.end([call(1), call(2)])
    log.close()


def test_a_log_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    calls = FaultyCalls(only=lambda path: ".open" in path)
    calls.open_error = OSError(13, "denied")
    with pytest.raises(CaptureError, match=r"s-1\.log.*denied"):
        OpenLog(tmp_path, "s-1.log", calls=calls)


def test_a_full_disk_is_an_error_of_the_one_call(tmp_path: Path) -> None:
    calls = FaultyCalls(only=lambda path: ".open" in path)
    log = OpenLog(tmp_path, "s-1.log", calls=calls, max_bytes=100)
    log.begin(call(1), "0-0")
    log.begin(call(2), "0-0")
    calls.open_error = OSError(28, "full")
    with pytest.raises(OSError, match="full"):
        log.begin(call(3), "0-1")
    assert living_open_calls(log.path) == {call(1): "0-0", call(2): "0-0"}
    calls.open_error = None
    log.begin(call(4), "0-2")
    assert living_open_calls(log.path) == {call(1): "0-0", call(2): "0-0", call(3): "0-1", call(4): "0-2"}
    log.close()
