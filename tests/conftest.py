"""Options shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def weights() -> Path:
    """The embedded model's weights."""
    from gym_ray.model_server.llama_cpp.weights import ensure_weights

    return ensure_weights(Path.home() / ".cache" / "gym-ray" / "weights")


@pytest.fixture(scope="session")
def model_url(weights: Path) -> Iterator[str]:
    """One embedded model for all tests that need no setting of it."""
    from gym_ray.model_server.llama_cpp.server import LlamaCppServer

    server = LlamaCppServer(weights, n_ctx=2048, n_parallel=2, n_threads=1)
    try:
        yield server.start()
    finally:
        server.stop()
