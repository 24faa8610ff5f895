"""The engine over the embedded model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gym_ray.model_server.llama_cpp.engine import LlamaCppEngine


@pytest.fixture
async def engine(model_url: str) -> AsyncIterator[LlamaCppEngine]:
    engine = LlamaCppEngine(model_url, model_name="gemma-3-270m")
    await engine.start()
    await engine.ready(30)
    try:
        yield engine
    finally:
        await engine.aclose()
