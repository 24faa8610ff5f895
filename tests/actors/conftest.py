"""One Ray cluster for all tests of actors, with a token of its own, and servers outside of it to talk to."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gym_ray.testing.serving import served


def _set_environment() -> dict[str, str | None]:
    """Set Ray's own environment, and return what was there before."""
    private = Path(tempfile.mkdtemp(prefix="gym-ray-tests-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    token = private / "auth_token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    wanted = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # makes Ray take the loopback address for the node's own
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    return before


# Here and not in a fixture: Ray reads it when it is imported, which some modules do while they are collected.
_BEFORE = _set_environment()


@pytest.fixture(scope="session", autouse=True)
def ray_environment() -> Iterator[None]:
    """Ray's own environment; put back afterwards."""
    yield
    for name, value in _BEFORE.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(scope="session")
def ray_cluster(ray_environment: None) -> Iterator[None]:
    from gym_ray.actors.cluster import connected

    with connected("gym-ray/tests", num_cpus=2, log_format="json"):
        yield


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    """Serve apps for one test."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(served(app))


@pytest.fixture
def write_settings(tmp_path: Path) -> Callable[..., Any]:
    """Build settings from YAML text and overrides, with capture in this test's directory."""
    from gym_ray.settings import load_settings

    def build(text: str, *overrides: str, capture: bool = True) -> Any:
        path = tmp_path / "settings.yaml"
        path.write_text(text)
        empty = tmp_path / "env.yaml"
        empty.write_text("{}\n")
        tokens = [f"++model_call_capture_dir={tmp_path / 'model-calls'}", f"++observability_enabled={capture}"]
        return load_settings([path], [*tokens, *overrides], env_file=empty, environ={})

    return build
