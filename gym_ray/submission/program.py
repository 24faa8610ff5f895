"""One program of a benchmark, as the driver's child: started, read from, told to stop, ended with all that it left.

It has a process group of its own, so that the driver alone decides which signals it gets, and it is told to end when
the driver dies, however that died.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

__all__ = ["Program"]

_PR_SET_PDEATHSIG = 1
_READ_BYTES = 1 << 16


class Program:
    """A child process, both of whose outputs come through one pipe. Not for use by several threads.

    Args:
        words: Its command line.
        environ: Its environment.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - what the benchmark's owner asked for
            list(words),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            process_group=0,
            preexec_fn=_ends_with(os.getpid()),
        )
        if self._process.stdout is None:
            raise OSError("the program has no output")
        self._output = self._process.stdout
        os.set_blocking(self.descriptor, False)

    @property
    def descriptor(self) -> int:
        """What its output is read from; ready when there is some, or its end."""
        return self._output.fileno()

    def read(self) -> bytes | None:
        """Return output that is there: None when there is none yet, b"" at its end."""
        return self._output.read(_READ_BYTES)

    def ended(self) -> bool:
        """Return whether the process has ended; it is not waited for, so that its group still is its own."""
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group; nothing happens where that is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def reap(self) -> int:
        """End what the process left in its group, wait for the process, return its status as ``Popen`` gives it."""
        self.signal(signal.SIGKILL)
        return self._process.wait()

    def close(self) -> None:
        """End the process if it still runs, and close the pipe."""
        if self._process.returncode is None:
            self.reap()
        self._output.close()


def _ends_with(parent: int) -> Callable[[], None] | None:
    """Return what makes a child end with its parent, None where the system has no such thing."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)

    def ask() -> None:
        library.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died before
            os.kill(os.getpid(), signal.SIGTERM)

    return ask
