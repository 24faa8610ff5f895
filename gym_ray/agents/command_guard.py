"""The process between a worker and one command: it starts the command, and stays until nothing of it is left.

It runs as a script of its own, with the standard library alone, so that it starts in a moment. Every orphan below it
becomes its child (a subreaper), so a program that forks twice and leaves its session is still found. It ends everything
when it is told to, and also when the worker dies, even by SIGKILL. It must never depend on what the command does:
signals that the command may send are ignored here.

Protocol: the control pipe brings four bytes of length and a JSON plan, then nothing or a byte that means "stop"; its
end means that the worker is gone. The status pipe takes one JSON line when nothing of the command runs any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections import defaultdict
from typing import Any, NamedTuple

__all__ = ["Process", "end_processes", "running_processes"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ)
_KILL_PATIENCE_S = 10.0
_ROUND_S = 0.02
_FREEZE_ROUNDS = 50


class Process(NamedTuple):
    """One process as ``/proc`` shows it; ``started`` tells it from a later one with the same id."""

    pid: int
    parent: int
    group: int
    started: str


def running_processes() -> list[Process]:
    """Return every process of this machine that is not a zombie."""
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names alone are cheaper, and there may be thousands
        process = _look_at(int(entry)) if entry.isdecimal() else None
        if process is not None:
            found.append(process)
    return found


def _look_at(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:  # it ended meanwhile
        return None
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[1]), int(fields[2]), fields[19].decode())


def end_processes(processes: list[Process], number: signal.Signals) -> None:
    """Send a signal to processes, never to a later one that got the id of one of them."""
    for process in processes:
        try:
            handle = os.pidfd_open(process.pid)
        except OSError:  # it ended meanwhile
            continue
        try:
            now = _look_at(process.pid)
            if now is not None and now.started == process.started:
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)


def _below(root: int) -> list[Process]:
    children = defaultdict(list)
    for process in running_processes():
        children[process.parent].append(process)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        below = children.pop(waiting.pop(), [])
        found.extend(below)
        waiting.extend(process.pid for process in below)
    return found


class _Guard:
    """Starts one command and ends everything that it left."""

    def __init__(self, plan: dict[str, Any], control: int, status: int, worker: int) -> None:
        self._plan, self._control, self._status, self._worker = plan, control, status, worker
        self._wake, wake_in = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_in, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll = select.poll()
        for descriptor in (self._wake, control, worker):
            self._poll.register(descriptor, select.POLLIN)
        self._main = 0
        self._exit_code: int | None = None
        self._childless = False
        self._stop = False
        self.abandoned = False

    def run(self) -> dict[str, Any]:
        """Run the command to its end; return the status line, which is true when nothing of it runs any more."""
        problem = self._start()
        if problem:
            return {"exit_code": None, "problem": f"could not be started: {problem}", "survivors": []}
        while self._exit_code is None and not self._stop:
            self._wait(None)
        exit_code = self._exit_code  # of its own; later it is we who end it
        self._end_rest()
        return {"exit_code": exit_code, "problem": "", "survivors": [process.pid for process in self._left()]}

    def report(self, line: dict[str, Any]) -> None:
        """Say how it ended, and remove what the worker cannot remove any more."""
        if self.abandoned:
            import shutil  # not at the top: nearly every guard does without, and would start more slowly with it

            shutil.rmtree(self._plan["private_directory"], ignore_errors=True)
        with contextlib.suppress(OSError):  # nobody listens any more; ending the command matters, not telling
            os.write(self._status, json.dumps(line).encode() + b"\n")

    def _start(self) -> str:
        """Fork and execute the command; return what kept it from starting, "" when nothing did."""
        report, report_in = os.pipe()
        guard = os.getpid()
        self._main = os.fork()
        if self._main == 0:
            self._become_command(guard, report_in)
        os.close(report_in)
        with os.fdopen(report, "rb") as file:
            problem = file.read().decode("utf-8", "replace")
        if problem:
            os.waitpid(self._main, 0)
        return problem

    def _become_command(self, guard: int, report: int) -> None:
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(1)
            signal.set_wakeup_fd(-1)
            for number in (*_IGNORED, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            inherited = {name: os.environ[name] for name in self._plan["inherit"] if name in os.environ}
            environment = inherited | self._plan["environment"]
            os.chdir(self._plan["directory"])
            command = self._plan["command"]
            try:
                os.execvpe(command[0], command, environment)  # noqa: S606 - as it is, no shell
            except FileNotFoundError:
                if "/" in command[0]:
                    raise
                os.write(report, f"there is no such program on the PATH {environment.get('PATH')}".encode())
        except BaseException as error:  # noqa: BLE001 - this is a fork: nothing may get out of it but this message
            os.write(report, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
        os._exit(127)

    def _wait(self, timeout_s: float | None) -> None:
        for descriptor, _ in self._poll.poll(None if timeout_s is None else max(0, int(timeout_s * 1000) + 1)):
            if descriptor == self._wake:
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._wake, 4096):
                        pass
                continue
            self._stop = True
            if descriptor == self._worker or not os.read(descriptor, 64):
                self.abandoned = True
                self._poll.unregister(descriptor)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if pid == self._main:
                self._exit_code = os.waitstatus_to_exitcode(status)

    def _left(self) -> list[Process]:
        return [] if self._empty() else _below(os.getpid())

    def _empty(self) -> bool:
        return self._childless  # whatever runs below hangs on a child

    def _end_rest(self) -> None:
        """End everything below: SIGTERM, the grace time, SIGKILL; without children there is nothing below."""
        self._reap()
        if self._empty():
            return
        if self._exit_code is None:
            os.killpg(self._main, signal.SIGTERM)  # at once, so that no member can fork itself out of it
        told = self._main if self._exit_code is None else None
        end_processes([process for process in self._left() if process.group != told], signal.SIGTERM)
        deadline = time.monotonic() + self._plan["grace_s"]
        while not self._empty() and (left_s := deadline - time.monotonic()) > 0:
            self._wait(left_s)
        deadline = time.monotonic() + _KILL_PATIENCE_S
        while not self._empty() and time.monotonic() < deadline:
            self._kill()
            self._wait(_ROUND_S)

    def _kill(self) -> None:
        """Kill whole groups, since nobody can fork out of that; freeze and kill what changes its group as it forks."""
        for group in {process.group for process in self._left()} - {os.getpgrp()}:
            with contextlib.suppress(ProcessLookupError):  # ended meanwhile; its number is not given out so soon again
                os.killpg(group, signal.SIGKILL)
        frozen: set[tuple[int, str]] = set()
        for _ in range(_FREEZE_ROUNDS):
            found = [process for process in self._left() if (process.pid, process.started) not in frozen]
            if not found:
                break
            end_processes(found, signal.SIGSTOP)
            frozen.update((process.pid, process.started) for process in found)
        end_processes(self._left(), signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def _read_plan(control: int) -> dict[str, Any] | None:
    """Return the plan, None when the worker died before it was whole."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        chunk = os.read(control, 1 << 16)
        if not chunk:
            return None
        data += chunk
    plan: dict[str, Any] = json.loads(data[4:])
    return plan


def _main(control: int, status: int) -> None:
    worker = os.pidfd_open(os.getppid())
    if os.fork():
        os._exit(0)  # no child of the worker: who ends its children must not end the guard before its work is done
    for descriptor in (control, status, worker):
        os.set_inheritable(descriptor, False)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    plan = _read_plan(control)
    if plan is not None:
        guard = _Guard(plan, control, status, worker)
        guard.report(guard.run())


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
