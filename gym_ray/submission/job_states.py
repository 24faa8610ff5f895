"""The states of a benchmark of a job, and the exit code that they add up to.

The worst benchmark wins. From bad to good: infrastructure failed (1), stopped (130), incomplete or not over yet (2),
complete (0). What is not known to be complete never counts as complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, get_args

__all__ = [
    "COMPLETE",
    "ENDED_STATES",
    "INCOMPLETE",
    "INFRASTRUCTURE",
    "STATES",
    "STOPPED",
    "BenchmarkState",
    "exit_code_of",
]

BenchmarkState = Literal["queued", "preparing", "running", "complete", "incomplete", "failed", "stopped"]
STATES: Final[tuple[BenchmarkState, ...]] = get_args(BenchmarkState)
ENDED_STATES: Final[frozenset[BenchmarkState]] = frozenset({"complete", "incomplete", "failed", "stopped"})
"""States that do not change any more, unless the benchmark is queued again."""

COMPLETE, INFRASTRUCTURE, INCOMPLETE, STOPPED = 0, 1, 2, 130
_FROM_BAD_TO_GOOD = (INFRASTRUCTURE, STOPPED, INCOMPLETE, COMPLETE)
_CODES: Final[dict[BenchmarkState, int]] = {"complete": COMPLETE, "failed": INFRASTRUCTURE, "stopped": STOPPED}


def exit_code_of(states: Iterable[BenchmarkState]) -> int:
    """Return the exit code of a command that tells how these benchmarks stand.

    Args:
        states: One a benchmark. A benchmark whose driver gives no sign of life any more is to be given as ``failed``.

    Returns:
        0 when all are complete; 1 when the infrastructure of one failed, or there is none; else 130 when one was
        stopped; else 2: one is incomplete, or is not over.
    """
    codes = {_CODES.get(state, INCOMPLETE) for state in states}
    return next((code for code in _FROM_BAD_TO_GOOD if code in codes), INFRASTRUCTURE)
