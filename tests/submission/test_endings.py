"""What the end of a program means."""

from __future__ import annotations

import pytest

from gym_ray.submission.endings import ending_of


@pytest.mark.parametrize(
    ("status", "stop", "wrote", "has_output", "state", "code", "told"),
    [
        (0, "", True, True, "complete", 0, ""),
        (0, "", True, False, "failed", 1, "its records are not there"),
        (0, "stopped on request", True, True, "complete", 0, "before it could be stopped"),
        (2, "", True, True, "incomplete", 2, "not every sample"),
        (2, "", False, False, "failed", 1, "exit code 2"),
        (2, "stopped on request", True, True, "incomplete", 2, "stopped on request; not every"),
        (130, "stopped on request", True, True, "stopped", 130, "stopped on request"),
        (-9, "stopped on request", True, True, "stopped", 130, "had to be killed by SIGKILL"),
        (-2, "stopped by SIGTERM", True, True, "stopped", 130, "stopped by SIGTERM"),
        (130, "", True, True, "stopped", 130, "was interrupted"),
        (-9, "", True, True, "failed", 1, "where memory runs out"),
        (-15, "", True, True, "failed", 1, "killed by SIGTERM"),
        (-99, "", True, True, "failed", 1, "killed by signal 99"),
        (1, "stopped on request", True, True, "failed", 1, "exit code 1 (stopped on request)"),
    ],
)
def test_no_end_looks_better_than_it_is(
    status: int, stop: str, wrote: bool, has_output: bool, state: str, code: int, told: str
) -> None:
    ending = ending_of("the evaluation", status, stop=stop, wrote=wrote, has_output=has_output)
    assert (ending.state, ending.exit_code) == (state, code)
    assert told in ending.message
