from __future__ import annotations

import pytest

from gym_ray.rollouts.rows.row_options import RowOptions


@pytest.mark.parametrize(
    ("repeats", "agent", "routed", "expected"),
    [
        (None, "a", "source", 1),
        (3, "a", "source", 3),
        ({"a": 2, "source": 4, "_default": 5}, "a", "source", 2),
        ({"source": 4, "_default": 5}, "a", "source", 4),
        ({"_default": 5}, "a", "source", 5),
        ({"_default": 5}, None, None, 5),
        ({"b": 2}, "a", "source", None),
    ],
)
def test_the_agent_that_runs_a_row_comes_before_the_name_that_the_row_gave(
    repeats: int | dict[str, int] | None, agent: str | None, routed: str | None, expected: int | None
) -> None:
    """D9: then the default; a row that nothing matches is the caller's to refuse."""
    assert RowOptions(num_repeats=repeats).repeats(agent, routed) == expected
