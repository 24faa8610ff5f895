"""``python -m gym_ray.submission.driver DIR``: runs one benchmark of a job where the job landed, and tells the truth.

It shares a directory with whoever submitted, and nothing else: there it finds what to run and whether to stop, and
there it says how things stand. It is killed without notice, on a full disk, on a node that lacks the directory; in none
of these cases may anything look better than it is.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from gym_ray.errors import GymRayError
from gym_ray.submission.arguments import BenchmarkArguments, read_arguments
from gym_ray.submission.driver_log import DriverLog
from gym_ray.submission.endings import Ending, ending_of, failed, stopped
from gym_ray.submission.job_files import DRIVER_LOG, STOP
from gym_ray.submission.job_states import INFRASTRUCTURE, BenchmarkState
from gym_ray.submission.landing import check_directory, held
from gym_ray.submission.planning import OUTPUT
from gym_ray.submission.program import Program
from gym_ray.submission.statuses import HEARTBEAT_S, BenchmarkStatus, write_status
from gym_ray.submission.stopping import Stopping

__all__ = ["Driver", "main"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ROUND_S = 0.2
_STOP_CHECK_S = 1.0
_OUTPUT_PATIENCE_S = 1.0
_CANNOT_START = (OSError, ValueError)
"""The second for words that no program can be given, such as one with a NUL character."""
_NOT_REQUIRED = "+require_complete=false"
_DIRECTORY_VARIABLE = "GYM_RAY_BENCHMARK_DIR"
"""What tells the programs of a benchmark where its directory is."""


class Driver:
    """The life of one benchmark. Use once, in the main thread of a process that has no other threads.

    Args:
        directory: The benchmark's directory.
        arguments: What it is run with.
        environ: The environment of its programs.
        log: Where their output goes.
    """

    def __init__(
        self, directory: Path, arguments: BenchmarkArguments, environ: Mapping[str, str], log: DriverLog
    ) -> None:
        self._directory, self._arguments, self._environ, self._log = directory, arguments, environ, log
        self._stopping = Stopping()
        now = time.time()
        self._status = BenchmarkStatus(
            "preparing", started_at=now, heartbeat_at=now, host=socket.gethostname(), pid=os.getpid()
        )
        self._beat_due = self._stop_check_due = 0.0

    def run(self) -> int:
        """Run the benchmark to its end, and return the exit code."""
        with self._signals_noticed() as self._wake:
            ending = self._programs()
            remark = self._log.remark()
            message = "; ".join(part for part in (ending.message, remark) if part)
            self._log.say(f"{ending.state}{f': {message}' if message else ''}")
            return self._end(ending, message)

    def _end(self, ending: Ending, message: str) -> int:
        now = time.time()
        self._status = replace(
            self._status,
            state=ending.state,
            exit_code=ending.exit_code,
            message=message,
            ended_at=now,
            heartbeat_at=now,
        )
        if self._publish():
            return ending.exit_code
        self._log.say("how it ended could not be written; its last status is no longer true")
        return ending.exit_code or INFRASTRUCTURE

    def _programs(self) -> Ending:
        if self._arguments.prepare is not None:
            ending = self._prepare(_words(self._arguments.prepare))
            if ending is not None:
                return ending
        self._look_for_stop()
        if self._stopping.reason:
            return stopped(f"{self._stopping.reason}, before the evaluation began")
        own = self._arguments.command
        name = "the evaluation" if own is None else "the command"
        words = _evaluation(self._directory) if own is None else _words(own)
        try:
            status = self._follow(words, "running")
        except _CANNOT_START as error:
            return failed(f"{name} cannot be started: {error}")
        artifacts, output = (self._directory / OUTPUT).parent, self._directory / OUTPUT
        ending = ending_of(
            name,
            status,
            stop=self._stopping.reason,
            wrote=own is not None or _holds_files(artifacts),
            has_output=own is not None or _is_there(output),
        )
        if ending.state == "complete" and not ending.message and _NOT_REQUIRED in self._arguments.eval_run:
            return ending._replace(message="samples may be missing, for require_complete is false")
        return ending

    def _prepare(self, words: Sequence[str]) -> Ending | None:
        """Run what prepares; return an ending unless the evaluation may begin."""
        try:
            status = self._follow(words, "preparing")
        except _CANNOT_START as error:
            return failed(f"prepare cannot be started: {error}")
        if self._stopping.reason:
            return stopped(f"{self._stopping.reason}, while it prepared")
        if not status:
            return None
        said = ending_of("prepare", status, stop="", wrote=False, has_output=True)
        return said if said.state == "stopped" else failed(said.message)

    def _follow(self, words: Sequence[str], state: BenchmarkState) -> int:
        """Run a program to its end and return its exit status.

        Raises:
            OSError, ValueError: It cannot be started.
        """
        self._status = replace(self._status, state=state)
        self._publish()
        self._beat_due = time.monotonic() + HEARTBEAT_S
        self._log.say(state)
        program = Program(words, self._environ)
        with ExitStack() as stack:
            stack.callback(program.close)
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(program.descriptor, selectors.EVENT_READ)
            while not program.ended():
                self._round(program, selector)
            status = program.reap()
            deadline = time.monotonic() + _OUTPUT_PATIENCE_S  # what left its group may hold the output open for ever
            while program.descriptor in _watched(selector) and time.monotonic() < deadline:
                self._read(program, selector)
        self._log.flush()
        return status

    def _round(self, program: Program, selector: selectors.BaseSelector) -> None:
        self._read(program, selector)
        now = time.monotonic()
        if now >= self._stop_check_due:
            self._look_for_stop()
        number = self._stopping.due(now)
        if number is not None:
            self._log.say(f"{self._stopping.reason}: sending {number.name}")
            program.signal(number)
        if now >= self._beat_due:
            self._beat_due = now + HEARTBEAT_S
            self._status = replace(self._status, heartbeat_at=time.time())
            self._publish(sync_name=False)

    def _read(self, program: Program, selector: selectors.BaseSelector) -> None:
        for key, _ in selector.select(_ROUND_S):
            if key.fd == self._wake:
                self._take_signals()
                continue
            data = program.read()
            if data:
                self._log.feed(data)
            elif data is not None:
                selector.unregister(program.descriptor)

    def _look_for_stop(self) -> None:
        self._take_signals()
        self._stop_check_due = time.monotonic() + _STOP_CHECK_S
        if not self._stopping.reason and _is_there(self._directory / STOP):
            self._stopping.request("stopped on request", time.monotonic())
            self._status = replace(self._status, message="is being stopped, on request", heartbeat_at=time.time())
            self._publish()

    def _take_signals(self) -> None:
        """Act on the signals that came: whoever sent one may kill this process within seconds, so it is said first."""
        try:
            numbers = os.read(self._wake, 64)
        except BlockingIOError:
            return
        for number in numbers:
            self._stopping.signalled(number, time.monotonic())
        now = time.time()
        message = f"{self._stopping.reason}; what has ended is stored, what runs is given up"
        code = stopped("").exit_code
        # The end overwrites this, where there is time for one.
        self._status = replace(
            self._status, state="stopped", exit_code=code, message=message, ended_at=now, heartbeat_at=now
        )
        self._publish()

    def _publish(self, *, sync_name: bool = True) -> bool:
        """Write the status; a failure is said and tried again with the next heartbeat."""
        try:
            write_status(self._directory, self._status, sync_name=sync_name)
        except OSError as error:
            self._log.say(f"the status cannot be written: {error}")
            return False
        return True

    @contextmanager
    def _signals_noticed(self) -> Iterator[int]:
        """Make signals readable from a descriptor for the block; after it, they no longer change how this ends."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        for number in _SIGNALS:
            signal.signal(number, _noticed)
        woken = signal.set_wakeup_fd(write_end)
        try:
            yield read_end
        finally:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            signal.set_wakeup_fd(woken)
            os.close(read_end)
            os.close(write_end)


def _noticed(_number: int, _frame: FrameType | None) -> None:
    """Let the wake-up descriptor tell."""


def _watched(selector: selectors.BaseSelector) -> set[int]:
    return {key.fd for key in selector.get_map().values()}


def _words(program: str | tuple[str, ...]) -> list[str]:
    return ["/bin/sh", "-c", program] if isinstance(program, str) else list(program)


def _evaluation(directory: Path) -> list[str]:
    return [sys.executable, "-m", "gym_ray.submission.evaluation", str(directory)]


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a mount that is gone for the moment
        return False


def _holds_files(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:
        return False


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the benchmark of a directory and return the exit code.

    Args:
        arguments: The directory.
        environ: The environment of this process.
    """
    if len(arguments) != 1:
        sys.stderr.write("error: give the directory of one benchmark\n")
        return INFRASTRUCTURE
    directory = Path(arguments[0])
    with ExitStack() as stack:
        try:
            check_directory(directory)
            stack.enter_context(held(directory))
        except GymRayError as error:
            sys.stderr.write(f"error: {error}\n")
            return INFRASTRUCTURE
        try:
            planned = read_arguments(directory)
            child_environ = planned.environ.applied(environ, str(directory))
        except GymRayError as error:
            return _never_began(directory, str(error))
        known = planned.secrets | planned.environ.secrets_in(environ)
        log = DriverLog(directory / DRIVER_LOG, known, sys.stdout.fileno())
        stack.callback(log.close)
        own = {"PYTHONUNBUFFERED": "1", **child_environ, _DIRECTORY_VARIABLE: str(directory)}
        return Driver(directory, planned, own, log).run()


def _never_began(directory: Path, message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    now = time.time()
    status = BenchmarkStatus("failed", INFRASTRUCTURE, message, now, now, now, socket.gethostname(), os.getpid())
    try:
        write_status(directory, status)
    except OSError as error:
        sys.stderr.write(f"error: {directory}: the status cannot be written: {error}\n")
    return INFRASTRUCTURE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
