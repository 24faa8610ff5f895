"""What the commands that use Ray share: Ray's environment, the run's token, signals."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gym_ray.errors import ClusterError
from gym_ray.log_context import LogFormat

__all__ = ["INTERRUPTED", "Interrupts", "new_run_token", "ray_session", "user_cache_dir"]

INTERRUPTED = 130
"""Exit code of a command that was stopped by Ctrl-C or SIGTERM."""

_PATIENCE = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def new_run_token() -> str:
    """Return a fresh bearer token for the control routes of one run."""
    return secrets.token_urlsafe(32)


def user_cache_dir() -> Path:
    """Return where this user's gym-ray keeps what outlives a command: assembled weights, tokens of running heads."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gym-ray"


class Interrupts:
    """Ctrl-C, SIGTERM and a closed terminal, counted; the command looks at the count where it is safe to stop.

    An exception out of a signal handler would land in the middle of Ray's own code, which does not survive it.

    Attributes:
        presses: How many came.
        tolerated: How many :meth:`check` lets pass, 0 until a run that must be stopped in order is under way.
    """

    def __init__(self) -> None:
        self.presses = 0
        self.tolerated = 0

    def check(self, _reason: str = "") -> None:
        """Give up when more came than are tolerated.

        Raises:
            KeyboardInterrupt: They did.
        """
        if self.presses > self.tolerated:
            raise KeyboardInterrupt

    def _count(self, _signum: int, _frame: FrameType | None) -> None:
        self.presses += 1
        if self.presses > _PATIENCE:
            os._exit(INTERRUPTED)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count for the block instead of raising; the third ends the process at once."""
        before = {number: signal.signal(number, self._count) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)


@contextmanager
def ray_session(
    namespace: str, *, num_cpus: int | None = None, verbose: bool = False, log_format: LogFormat = "text"
) -> Iterator[Interrupts]:
    """Hold a Ray cluster for the block: the one named by ``RAY_ADDRESS``, else a local one of our own.

    A local cluster gets a token of its own in a file that ends with it, so that it neither uses nor leaves a token in
    the home directory. Usage reports are off. Interrupts are counted for the block.

    Raises:
        ClusterError: Ray is not installed, or could not be started or joined.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if log_format == "json":
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # Ray drops lines that are alike, and writes into those it keeps
    address = os.environ.get("RAY_ADDRESS") or "local"
    level = "INFO" if verbose else "WARNING"
    interrupts = Interrupts()
    with tempfile.TemporaryDirectory(prefix="gym-ray-") as private, interrupts.counted():
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
        interrupts.check()
        # Ray takes SIGTERM for itself when it starts, and would end the command in the middle of anything.
        cluster = connected(namespace, address=address, num_cpus=num_cpus, log_level=level, log_format=log_format)
        with cluster, interrupts.counted():
            interrupts.check()
            yield interrupts
