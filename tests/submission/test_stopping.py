"""How firmly a program is told to stop, by the time that has passed."""

from __future__ import annotations

from signal import SIGINT, SIGKILL, SIGTERM, Signals

from gym_ray.submission.stopping import Stopping


def sent(stopping: Stopping, until_s: float) -> list[tuple[float, Signals]]:
    """Return what is sent, looked at every half second."""
    times = [step / 2 for step in range(int(until_s * 2) + 1)]
    return [(now, number) for now in times if (number := stopping.due(now)) is not None]


def test_a_request_is_patient() -> None:
    stopping = Stopping()
    assert sent(stopping, 5) == []
    stopping.request("on request", 0)
    stopping.request("again", 1)
    assert stopping.reason == "on request"
    assert sent(stopping, 100) == [(0, SIGINT), (60, SIGINT), (75, SIGKILL)]


def test_a_signal_waits_a_moment_for_the_programs_own() -> None:
    stopping = Stopping()
    stopping.signalled(SIGTERM, 0)
    assert "SIGTERM" in stopping.reason
    assert sent(stopping, 2) == [(1, SIGINT)]


def test_more_signals_are_impatience() -> None:
    stopping = Stopping()
    stopping.request("on request", 0)
    stopping.signalled(SIGTERM, 0)
    stopping.signalled(SIGTERM, 0)
    assert stopping.reason == "on request"
    assert sent(stopping, 20) == [(0, SIGINT), (5, SIGKILL)]
    stopping.signalled(SIGTERM, 20)
    assert stopping.due(20) == SIGKILL
