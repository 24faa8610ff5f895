"""Which failures are tried again: at once, in a resumed run, or never (D53, D54).

Pure rules over what a run knows of a row. A failure that the rules do not name, such as a class that an agent made up,
is tried again by a resumed run until its budget is spent.
"""

from __future__ import annotations

from gym_ray.rollouts.row_states.failure_classes import TERMINAL, TERMINAL_TIMEOUTS_RETRIED

__all__ = [
    "DEFAULT_MAX_ATTEMPTS",
    "INVALID_ROW",
    "NEVER_RETRIED",
    "RETRIED_IN_RUN",
    "RETRIED_ON_RESUME",
    "is_gated",
    "max_attempts_of",
]

DEFAULT_MAX_ATTEMPTS = 3
"""Failed attempts after which a row is given up, unless something else is said."""

INVALID_ROW = "invalid_row"
"""Class of a row that is damaged when its turn comes."""

RETRIED_IN_RUN = frozenset({"worker_lost", "node_lost"})
"""Classes that say nothing about the row: it runs again in the same run, as a new attempt."""

RETRIED_ON_RESUME = RETRIED_IN_RUN | {
    "agent_request_failed",
    "agent_run_error",
    "agent_timeout",
    "judge_failed",
    "judge_invalid",
    "engine_unavailable",
}
"""Classes of ours that a resumed run tries again. It names them only: what gates a row is its records' bits."""

NEVER_RETRIED = frozenset({INVALID_ROW, "quarantined"})
"""Classes that no further try can change. It names them only: their records are marked terminal, which gates a row."""


def is_gated(
    failures: int, terminal: int, max_attempts: int = DEFAULT_MAX_ATTEMPTS, *, retry_terminal_timeouts: bool = False
) -> bool:
    """Return whether a row that has no result gets no further try (D53, D54).

    Args:
        failures: Failed attempts that are recorded, over all runs; a start that was killed is none.
        terminal: What those failures say of further tries, the bits of all of them together.
        max_attempts: Failed attempts after which a row is given up.
        retry_terminal_timeouts: Apply the second rule of D54, under which time limits and faults of the surroundings
            are never terminal and skipped rows always are.
    """
    forbids = TERMINAL_TIMEOUTS_RETRIED if retry_terminal_timeouts else TERMINAL
    return bool(terminal & forbids) or failures >= max_attempts


def max_attempts_of(text: str | None) -> tuple[int, str | None]:
    """Return the budget that a text of the environment asks for, and what to warn of (D53).

    An unusable text means the default, and the warning says so; no text means the default without a warning.
    """
    if text is None:
        return DEFAULT_MAX_ATTEMPTS, None
    stripped = text.strip()
    if stripped.isascii() and stripped.isdecimal() and int(stripped) > 0:
        return int(stripped), None
    problem = f"{text!r} is not a whole number from 1 up, so that each row has {DEFAULT_MAX_ATTEMPTS} attempts"
    return DEFAULT_MAX_ATTEMPTS, problem
