"""What the commands that use Ray share: Ray's environment, the run's token, signals."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gym_ray.errors import ClusterError

__all__ = ["new_run_token", "on_interrupt", "ray_session", "user_cache_dir"]


def new_run_token() -> str:
    """Return a fresh bearer token for the control routes of one run."""
    return secrets.token_urlsafe(32)


def user_cache_dir() -> Path:
    """Return where this user's gym-ray keeps what outlives a command: assembled weights, tokens of running heads."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gym-ray"


@contextmanager
def ray_session(namespace: str, *, num_cpus: int | None = None, verbose: bool = False) -> Iterator[None]:
    """Hold a Ray cluster for the block: the one named by ``RAY_ADDRESS``, else a local one of our own.

    A local cluster gets a token of its own in a file that ends with it, so that it neither uses nor leaves a token in
    the home directory. Usage reports are off.

    Raises:
        ClusterError: Ray is not installed, or could not be started or joined.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS") or "local"
    level = "INFO" if verbose else "WARNING"
    with tempfile.TemporaryDirectory(prefix="gym-ray-") as private:
        if address == "local" and "RAY_AUTH_MODE" not in os.environ:
            token_file = Path(private) / "auth_token"
            token_file.touch(mode=0o600)
            token_file.write_text(secrets.token_hex(32))
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ["RAY_AUTH_TOKEN_PATH"] = str(token_file)
        try:
            from gym_ray.actors.cluster import connected
        except ImportError as error:
            raise ClusterError(f"Ray cannot be imported: {error}; install it with `pip install gym-ray`") from error
        with connected(namespace, address=address, num_cpus=num_cpus, log_level=level):
            yield


@contextmanager
def on_interrupt(handler: Callable[[], object]) -> Iterator[None]:
    """Call ``handler`` at the first Ctrl-C or SIGTERM of the block; a second Ctrl-C ends the process at once."""

    def first(_signum: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        handler()

    before = {number: signal.signal(number, first) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
