"""What a replayed stream raises inside of the server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from starlette.responses import Response

from gym_ray.model_server.replayed import CallFailedError


def test_a_failed_call_passes_through_context_managers() -> None:
    @contextlib.contextmanager
    def block() -> Iterator[None]:
        yield

    failure = CallFailedError(429, "slow down", Response(status_code=429))
    with pytest.raises(CallFailedError) as caught, block():
        raise failure
    assert caught.value is failure
    assert "slow down" in str(failure)
