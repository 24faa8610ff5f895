"""A process that is killed in the middle of its work, and what it had told by then."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence

__all__ = ["lines_until_killed"]


def lines_until_killed(command: Sequence[str], after_lines: int) -> list[bytes]:
    """Run a command, kill it with SIGKILL once it has written ``after_lines`` lines, and return all that it wrote.

    Raises:
        AssertionError: It ended by itself before the kill.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 - a test's own program
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(after_lines)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert process.returncode == -signal.SIGKILL, process.returncode
    return lines
