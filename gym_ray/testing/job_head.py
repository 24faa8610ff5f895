"""A Ray cluster of one node with a job server, as `ray start` makes it: started and ended by its own process alone."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

__all__ = ["JobHead", "free_port", "job_head"]

_UP_S = 120.0
_DOWN_S = 120.0


@dataclass(frozen=True, slots=True)
class JobHead:
    """A running cluster.

    Attributes:
        url: Of its job server.
        gcs: ``host:port`` of Ray itself.
        token: The file with its token.
        session: The process that started it, which leads the session of all that it started.
    """

    url: str
    gcs: str
    token: Path
    session: int

    def kill(self) -> None:
        """End everything of it at once, as the loss of its machine would; what jobs run is left to find that out."""
        for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
            with suppress(ProcessLookupError):
                if os.getsid(pid) == self.session:
                    os.kill(pid, signal.SIGKILL)

    def headers(self) -> dict[str, str]:
        """Return what a request of its own needs."""
        return {"Authorization": f"Bearer {self.token.read_text()}"}

    def environ(self) -> dict[str, str]:
        """Return the environment of somebody who uses the cluster, and nothing else of Ray's."""
        return _environ(self.token)


def _environ(token: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return own | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def free_port() -> int:
    """Return a port that nobody listens at just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def job_head(directory: Path, token: Path, *, num_cpus: int = 2) -> Iterator[JobHead]:
    """Hold a cluster for the block, bound to loopback.

    Args:
        directory: Where its output goes.
        token: File with the token that it asks for; Ray's client knows one in its life, so a process has one for all.
        num_cpus: CPUs that it offers.

    Raises:
        RuntimeError: It did not come up; the message holds its output.
    """
    # Sockets lie in it, and their paths have 107 bytes at most, so it cannot be below the directory of a test.
    scratch = Path(tempfile.gettempdir()) / f"gr{secrets.token_hex(3)}"
    gcs, dashboard = free_port(), free_port()
    command = [
        *(str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--disable-usage-stats"),
        *(f"--num-cpus={num_cpus}", f"--port={gcs}", "--node-ip-address=127.0.0.1", f"--temp-dir={scratch}"),
        *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"),
        *(f"--dashboard-agent-listen-port={free_port()}", "--min-worker-port=0", "--max-worker-port=0"),
    ]
    environ = _environ(token) | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    with (directory / "head.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - words of our own
            command, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    head = JobHead(f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{gcs}", token, process.pid)
    try:
        _wait_until_up(head, process, directory / "head.log")
        yield head
    finally:
        process.send_signal(signal.SIGTERM)  # with --block it ends what it started, and nothing else
        process.wait(_DOWN_S)
        shutil.rmtree(scratch, ignore_errors=True)


def _wait_until_up(head: JobHead, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _UP_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{head.url}/api/version", headers=head.headers()).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.1)
    raise RuntimeError(f"no job server at {head.url}:\n{log.read_text()}")
