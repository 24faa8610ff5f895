"""The log says at once that calls are not captured, and a flood of them costs a line an interval."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from gym_ray.model_call_capture.refusals import RefusalLog

LOG = logging.getLogger("tests.refusals")
FIRST = "a model call is served but not captured: "


def wait_for(caplog: pytest.LogCaptureFixture, lines: int) -> list[str]:
    deadline = time.monotonic() + 20
    while len(caplog.messages) < lines:
        assert time.monotonic() < deadline, caplog.messages
        threading.Event().wait(0.005)
    return caplog.messages


def test_the_first_is_told_at_once_and_the_rest_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    refusals = RefusalLog(LOG, interval_s=3600)
    for number in range(1000):
        refusals.say(f"id {number}")
    assert caplog.messages == [FIRST + "id 0"]
    refusals.close()
    assert caplog.messages[1:] == ["999 more model calls were served but not captured within 3600 s; the last: id 999"]
    refusals.close()
    assert len(caplog.messages) == 2


def test_a_summary_comes_by_itself_when_the_interval_ends(caplog: pytest.LogCaptureFixture) -> None:
    refusals = RefusalLog(LOG, interval_s=0.05)
    refusals.say("a")
    refusals.say("b")
    messages = wait_for(caplog, 2)
    told = FIRST + "b" if messages[1].startswith(FIRST) else "1 more model calls were served but not captured"
    assert messages[1].startswith(told)
    refusals.close()


def test_after_a_quiet_interval_the_next_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    refusals = RefusalLog(LOG, interval_s=0.01)
    deadline = time.monotonic() + 20
    while caplog.messages.count(FIRST + "x") < 2:
        assert time.monotonic() < deadline
        refusals.say("x")
        threading.Event().wait(0.02)
    refusals.close()


def test_nothing_is_told_and_no_thread_left_without_refusals(caplog: pytest.LogCaptureFixture) -> None:
    before = set(threading.enumerate())
    refusals = RefusalLog(LOG)
    refusals.close()
    refusals.say("late")
    assert caplog.messages == [FIRST + "late"]
    assert set(threading.enumerate()) <= before


def test_a_closed_log_leaves_no_thread() -> None:
    refusals = RefusalLog(LOG, interval_s=3600)
    refusals.say("x")
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    refusals.close()
    for timer in timers:
        timer.join(20)
        assert not timer.is_alive()
