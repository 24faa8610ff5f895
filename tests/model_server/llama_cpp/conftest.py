"""One embedded model for all tests of this directory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gym_ray.model_server.llama_cpp.engine import LlamaCppEngine
from gym_ray.model_server.llama_cpp.server import LlamaCppServer
from gym_ray.model_server.llama_cpp.weights import ensure_weights


@pytest.fixture(scope="session")
def weights() -> Path:
    return ensure_weights(Path.home() / ".cache" / "gym-ray" / "weights")


@pytest.fixture(scope="session")
def model_url(weights: Path) -> Iterator[str]:
    server = LlamaCppServer(weights, n_ctx=2048, n_parallel=2, n_threads=1)
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
async def engine(model_url: str) -> AsyncIterator[LlamaCppEngine]:
    engine = LlamaCppEngine(model_url, model_name="gemma-3-270m")
    await engine.start()
    await engine.ready(30)
    try:
        yield engine
    finally:
        await engine.aclose()
