"""What the end of a benchmark's program means: a state, and why. Pure, and never better than what is known."""

from __future__ import annotations

import signal
from typing import NamedTuple

from gym_ray.submission.job_states import COMPLETE, INCOMPLETE, INFRASTRUCTURE, STOPPED, BenchmarkState

__all__ = ["Ending", "ending_of", "failed", "stopped"]


class Ending(NamedTuple):
    """How a benchmark ended."""

    state: BenchmarkState
    exit_code: int
    message: str


def failed(message: str) -> Ending:
    """Return the end of a benchmark whose infrastructure failed."""
    return Ending("failed", INFRASTRUCTURE, message)


def stopped(message: str) -> Ending:
    """Return the end of a benchmark that was stopped."""
    return Ending("stopped", STOPPED, message)


def ending_of(program: str, status: int, *, stop: str, wrote: bool, has_output: bool) -> Ending:
    """Return what the end of a benchmark's last program means.

    Args:
        program: What to call it.
        status: Its exit status; minus the number of the signal that killed it.
        stop: Why it was told to stop, "" when it was not.
        wrote: Whether it left any file of results; true where that cannot be known.
        has_output: Whether its records are there; true where it promises none.
    """
    if status == COMPLETE and not has_output:
        return failed(f"{program} ended with exit code 0, but its records are not there: is the directory shared?")
    if status == COMPLETE:
        late = f"it was complete before it could be stopped ({stop})" if stop else ""
        return Ending("complete", COMPLETE, late)
    if status == INCOMPLETE and wrote:
        return Ending("incomplete", INCOMPLETE, f"{stop}; not every sample was completed".removeprefix("; "))
    if stop and (status < 0 or status == STOPPED):
        left = f"; {program} had to be {_by_signal(status)}" if status in (-signal.SIGKILL,) else ""
        return stopped(f"{stop}{left}")
    if status == STOPPED:
        return stopped(f"{program} was interrupted")
    if status < 0:
        memory = ", as the kernel does where memory runs out" if status == -signal.SIGKILL else ""
        return failed(f"{program} was {_by_signal(status)}{memory}")
    return failed(f"{program} ended with exit code {status}" + (f" ({stop})" if stop else ""))


def _by_signal(status: int) -> str:
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
