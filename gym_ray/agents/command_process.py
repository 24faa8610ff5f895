"""Runs one command under a guard and gives back how it ended and the ends of its outputs.

When :func:`run_command` returns or raises, no process of the command is left, whatever the command did: a guard
process ends them, and should the guard itself have been killed, they are looked for by a mark in their environment.
Nothing here blocks the event loop, uses signals, or waits for children there: it works on any loop in any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_ray.agents import command_guard
from gym_ray.agents.command_guard import Process, end_processes, running_processes

__all__ = ["INHERITED_VARIABLES", "CommandEnd", "CommandLine", "OutputTail", "run_command"]

INHERITED_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
"""What a command sees of the worker's environment; keys, tokens and proxies of the worker are none of its business."""

_MARK = "GYM_RAY_COMMAND_ID"
_OUTPUT_PATIENCE_S = 5.0
_SWEEP_PATIENCE_S = 10.0
_SWEEP_ROUND_S = 0.02
_MAX_STATUS_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What runs.

    Attributes:
        arguments: Program and arguments.
        environment: Variables beside the inherited ones.
        directory: Working directory.
        private_directory: Removed by the guard if the worker dies; otherwise the caller's.
        stdin: File that standard input reads.
        grace_s: From SIGTERM to SIGKILL.
        mark: Text that no other command has.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path
    private_directory: Path
    stdin: Path
    grace_s: float
    mark: str

    def plan(self) -> bytes:
        """Return what the guard reads. It goes through a pipe: a key must not stand on a command line or on disk."""
        plan = {
            "command": self.arguments,
            "environment": {**self.environment, _MARK: self.mark},
            "inherit": INHERITED_VARIABLES,
            "directory": str(self.directory),
            "private_directory": str(self.private_directory),
            "grace_s": self.grace_s,
        }
        text = json.dumps(plan).encode()
        return len(text).to_bytes(4, "big") + text


@dataclass(frozen=True, slots=True)
class OutputTail:
    """The end of an output.

    Attributes:
        kept: The last bytes.
        total: How many there were.
    """

    kept: bytes
    total: int

    @property
    def cut(self) -> bool:
        """Whether something in front is missing."""
        return self.total > len(self.kept)


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended; nothing of it runs any more, except for ``survivors``.

    Attributes:
        exit_code: Its exit status, minus the signal's number when one killed it; None when it did not end by itself.
        problem: That it could not be started, or what happened to its guard; "" when neither did.
        timed_out: Its time ran out.
        survivors: Ids of processes that even SIGKILL did not end.
        stdout: End of its standard output.
        stderr: End of its standard error.
    """

    exit_code: int | None
    problem: str
    timed_out: bool
    survivors: tuple[int, ...]
    stdout: OutputTail
    stderr: OutputTail


async def run_command(command: CommandLine, *, timeout_s: float | None, max_output_bytes: int) -> CommandEnd:
    """Run a command to its end, or until its time is over, and end whatever it leaves behind.

    Args:
        command: What runs.
        timeout_s: Longest that it may run, None for no bound.
        max_output_bytes: Bytes kept of each output.

    Raises:
        OSError: No process could be made; nothing ran.
        asyncio.CancelledError: The caller was cancelled; the command was ended first.
    """
    stop = asyncio.Event()
    # A task of its own: the caller may be cancelled, even twice, and the command is still ended in order.
    life = asyncio.create_task(_live(command, timeout_s, max_output_bytes, stop), name=f"command {command.mark}")
    cancelled: asyncio.CancelledError | None = None
    while not life.done():
        try:
            await asyncio.wait([life])
        except asyncio.CancelledError as error:
            cancelled = error
            stop.set()
    if cancelled is not None:
        life.cancelled() or life.exception()  # looked at; the caller does not want to know any more
        raise cancelled
    return life.result()


async def _live(
    command: CommandLine, timeout_s: float | None, max_output_bytes: int, stop: asyncio.Event
) -> CommandEnd:
    pipes = await asyncio.to_thread(_spawn, command)
    with contextlib.ExitStack() as held:
        held.callback(os.close, pipes.control)  # the guard takes its end as the order to end everything
        unread = [(pipes.stderr, max_output_bytes), (pipes.stdout, max_output_bytes), (pipes.status, _MAX_STATUS_BYTES)]
        held.callback(_close_all, unread)
        status, stdout, stderr = [await _read(*unread.pop(), held) for _ in range(3)]
        told = asyncio.create_task(stop.wait())
        held.callback(told.cancel)
        either: set[asyncio.Future[Any]] = {status.closed, told}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        timed_out = not status.closed.done() and not told.done()
        if not status.closed.done():
            with contextlib.suppress(BrokenPipeError):  # it has just ended by itself
                os.write(pipes.control, b"s")
            await status.closed
        said = await _last_word(command, status)
        # All that held the outputs is gone, so their ends are there to be read, unless something survived.
        await asyncio.wait({stdout.closed, stderr.closed}, timeout=_OUTPUT_PATIENCE_S)
        exit_code = said["exit_code"]  # a number when it ended by itself, though what it left may have taken its time
        timed_out = timed_out and exit_code is None
        survivors = tuple(said["survivors"])
        return CommandEnd(exit_code, said["problem"], timed_out, survivors, stdout.tail(), stderr.tail())


@dataclass(frozen=True, slots=True)
class _Pipes:
    """Our ends of the pipes to a guard."""

    control: int
    status: int
    stdout: int
    stderr: int


def _close_all(unread: list[tuple[int, int]]) -> None:
    for descriptor, _ in unread:
        os.close(descriptor)


def _spawn(command: CommandLine) -> _Pipes:
    """Start the guard and tell it what to run; blocks for a moment, so it runs in a thread."""
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        control, control_in = os.pipe()
        theirs.callback(os.close, control)
        ours.callback(os.close, control_in)
        outputs = []
        for _ in range(3):
            ours_end, theirs_end = os.pipe()
            ours.callback(os.close, ours_end)
            theirs.callback(os.close, theirs_end)
            outputs.append((ours_end, theirs_end))
        (status, status_in), (stdout, stdout_in), (stderr, stderr_in) = outputs
        stdin = theirs.enter_context(command.stdin.open("rb"))
        guard = [sys.executable, "-I", "-S", command_guard.__file__, str(control), str(status_in)]
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
            guard,
            stdin=stdin,
            stdout=stdout_in,
            stderr=stderr_in,
            pass_fds=(control, status_in),
            start_new_session=True,
        )
        theirs.close()
        with contextlib.suppress(BrokenPipeError):  # it has died; that its status ends without a word says so
            _write_whole(control_in, command.plan())
        process.wait()  # at once: it only forks
        ours.pop_all()
    return _Pipes(control_in, status, stdout, stderr)


def _write_whole(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class _TailReader(asyncio.Protocol):
    """Reads a pipe to its end and keeps the last bytes, so that whoever writes never has to wait for long."""

    def __init__(self, limit: int) -> None:
        self._limit, self._kept, self._total = limit, bytearray(), 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._total += len(data)
        self._kept += data
        if len(self._kept) > 2 * self._limit:
            del self._kept[: -self._limit]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - a broken pipe is an ended one
        if not self.closed.done():
            self.closed.set_result(None)

    def tail(self) -> OutputTail:
        return OutputTail(bytes(self._kept[-self._limit :]), self._total)


async def _read(descriptor: int, limit: int, held: contextlib.ExitStack) -> _TailReader:
    file = os.fdopen(descriptor, "rb", 0)
    try:
        transport, reader = await asyncio.get_running_loop().connect_read_pipe(lambda: _TailReader(limit), file)
    except BaseException:
        file.close()
        raise
    held.callback(transport.close)
    return reader


async def _last_word(command: CommandLine, status: _TailReader) -> dict[str, Any]:
    """Return what the guard said at its end; without a word it was killed, and its work is done here."""
    line = status.tail().kept
    if line:
        said: dict[str, Any] = json.loads(line)
        return said
    survivors = await asyncio.to_thread(_sweep, f"{_MARK}={command.mark}".encode())
    return {
        "exit_code": None,
        "problem": "did not run to its end: the process that guards it was killed",
        "survivors": survivors,
    }


def _sweep(mark: bytes) -> list[int]:
    """End every process with this mark in its environment; return the ids of those that cannot be ended."""
    deadline = time.monotonic() + _SWEEP_PATIENCE_S
    while True:
        found = [process for process in running_processes() if mark in _environment(process)]
        if not found or time.monotonic() > deadline:
            return [process.pid for process in found]
        end_processes(found, signal.SIGKILL)
        time.sleep(_SWEEP_ROUND_S)


def _environment(process: Process) -> list[bytes]:
    try:
        return Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it ended, or belongs to somebody else
        return []
