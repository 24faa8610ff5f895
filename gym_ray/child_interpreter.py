"""One function in an interpreter of its own, for work that would hold this interpreter's lock for too long.

Parsing or writing JSON of many megabytes is one call that holds the lock from beginning to end: on a thread it stalls
the event loop as much as on the loop itself. A child has a lock of its own, and sending it bytes releases ours.

The child lives as long as its parent: it reads from a pipe that the parent's death closes, however the parent died.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gym_ray.errors import ChildInterpreterError

__all__ = ["ChildInterpreter"]

_T = TypeVar("_T")
_LENGTH = struct.Struct("<Q")
_BOOT = """
import sys
sys.path[:] = {path!r}
from gym_ray.child_interpreter import serve
serve({target!r}, {read}, {write})
"""
_CLOSE_PATIENCE_S = 5.0


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    to_child: io.BufferedWriter
    from_child: io.BufferedReader

    def end(self) -> None:
        """Close its pipe, which ends it; kill it when it does not end."""
        for pipe in (self.to_child, self.from_child):
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # it is gone already, with what was not read
        try:
            self.process.wait(_CLOSE_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class ChildInterpreter(Generic[_T]):
    """Calls a function in a child process, one call at a time; the child starts with the first call.

    Args:
        function: A function at the top of a module; its arguments, its result and its errors must pickle.
    """

    def __init__(self, function: Callable[..., _T]) -> None:
        self._target = f"{function.__module__}:{function.__qualname__}"
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._closed = False

    def call(self, *arguments: Any) -> _T:
        """Return what the function returns. Blocks; may be called from any thread.

        Raises:
            ChildInterpreterError: The child could not be started, ended during the call, or cannot be told the
                arguments; the next call starts another.
            Exception: Whatever the function raises.
        """
        try:
            request = [pickle.dumps(arguments, pickle.HIGHEST_PROTOCOL)]
        except Exception as error:
            raise ChildInterpreterError(f"{self._target}: the arguments do not pickle: {error!r}") from error
        with self._lock:
            if self._closed:
                raise ChildInterpreterError(f"{self._target}: the child interpreter was closed")
            succeeded, value = self._ask(request)
        if not succeeded:
            raise value
        result: _T = value
        return result

    def close(self) -> None:
        """End the child; idempotent. A call under way ends first, but one that lasts five seconds loses its child."""
        self._closed = True
        if not self._lock.acquire(timeout=_CLOSE_PATIENCE_S):
            if (child := self._child) is not None:
                child.process.kill()
            self._lock.acquire()
        try:
            self._end()
        finally:
            self._lock.release()

    @property
    def pid(self) -> int | None:
        """Process id of the child, None when none runs."""
        return None if self._child is None else self._child.process.pid

    def _ask(self, request: list[bytes]) -> tuple[bool, Any]:
        """Return the child's answer; under the lock. A child that was asked and not heard must answer nobody else.

        The request is taken out of its list, so that its bytes are gone when the answer's come.
        """
        heard = False
        try:
            child = self._child = self._child or self._start()
            _send(child.to_child, request.pop())
            succeeded, value = pickle.loads(_receive(child.from_child))  # noqa: S301 - our own child's bytes
            heard = True
        except Exception as error:
            raise ChildInterpreterError(f"{self._target}: the child interpreter ended: {error!r}") from error
        finally:
            if not heard:
                self._end()
        return succeeded, value

    def _start(self) -> _Child:
        child_reads, we_write = os.pipe()
        we_read, child_writes = os.pipe()
        boot = _BOOT.format(path=sys.path, target=self._target, read=child_reads, write=child_writes)
        try:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own words
                [sys.executable, "-c", boot], stdin=subprocess.DEVNULL, pass_fds=(child_reads, child_writes)
            )
        except OSError:
            os.close(we_write)
            os.close(we_read)
            raise
        finally:
            os.close(child_reads)
            os.close(child_writes)
        return _Child(process, os.fdopen(we_write, "wb"), os.fdopen(we_read, "rb"))

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


def serve(target: str, read: int, write: int) -> None:
    """Answer calls until the pipe ends; the body of the child process."""
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    with os.fdopen(read, "rb") as requests, os.fdopen(write, "wb") as replies:
        while True:
            try:
                request = _receive(requests)
            except EOFError:
                return
            try:
                _send(replies, _outcome(function, request))
            except BrokenPipeError:
                os._exit(1)  # the parent was killed: there is nobody to tell, and what is buffered has nowhere to go


def _outcome(function: Callable[..., Any], request: bytes) -> bytes:
    try:
        arguments = pickle.loads(request)  # noqa: S301 - our own parent's bytes
    except Exception as error:  # noqa: BLE001 - a class that only the parent has ends no child
        return pickle.dumps((False, ChildInterpreterError(f"the arguments do not unpickle: {error!r}")))
    try:
        return pickle.dumps((True, function(*arguments)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - it is raised where the call was made
        try:
            return pickle.dumps((False, error), pickle.HIGHEST_PROTOCOL)
        except Exception:  # noqa: BLE001 - an error that does not pickle is told by its words
            return pickle.dumps((False, ChildInterpreterError(f"the call failed: {error!r}")), pickle.HIGHEST_PROTOCOL)


def _send(pipe: io.BufferedWriter, message: bytes) -> None:
    pipe.write(_LENGTH.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def _receive(pipe: io.BufferedReader) -> bytes:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("the pipe ended")
    (length,) = _LENGTH.unpack(head)
    message = pipe.read(length)
    if len(message) < length:
        raise EOFError("the pipe ended in a message")
    return message
