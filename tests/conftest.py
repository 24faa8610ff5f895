"""Options shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is. Examples are the same each time, so that a failure is of the
# change at hand; `pytest --hypothesis-profile=exploring` draws new ones.
settings.register_profile("exploring", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("exploring"), derandomize=True)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--vectors",
        type=Path,
        default=Path(__file__).parent / "vectors",
        help="directory with vector files to run instead of the ones beside the tests; absent files are not run",
    )
    parser.addoption(
        "--all-interpreters",
        action="store_true",
        help="run the packaging tests on every supported Python of the machine",
    )
    parser.addoption("--run-slow", action="store_true", help="also run the long forms of chaos and soak tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--run-slow"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
