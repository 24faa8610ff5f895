"""Work in an interpreter of its own: results, errors, deaths on both sides."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gym_ray import child_interpreter, exact_json
from gym_ray.child_interpreter import ChildInterpreter
from gym_ray.errors import ChildInterpreterError


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


@pytest.fixture
def dumps() -> Iterator[ChildInterpreter[bytes]]:
    child = ChildInterpreter(exact_json.dumps)
    yield child
    child.close()


def test_results_errors_and_large_values_pass(dumps: ChildInterpreter[bytes]) -> None:
    assert dumps.call({"a": 2**70}) == b'{"a":1180591620717411303424}'
    large = "x" * (8 * 1024**2)
    assert dumps.call([large]) == b'["' + large.encode() + b'"]'
    with pytest.raises(TypeError):
        dumps.call()
    assert dumps.call(1) == b"1", "a call that failed ends no child"


def test_a_child_that_was_killed_fails_one_call_and_is_replaced(dumps: ChildInterpreter[bytes]) -> None:
    dumps.call(1)
    first = dumps.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until_gone(first)
    with pytest.raises(ChildInterpreterError, match=r"gym_ray\.exact_json:dumps"):
        dumps.call(2)
    assert dumps.call(3) == b"3"
    assert dumps.pid != first


def test_arguments_that_do_not_pickle_are_named_and_harm_nothing(dumps: ChildInterpreter[bytes]) -> None:
    with pytest.raises(ChildInterpreterError, match="do not pickle"):
        dumps.call(threading.Lock())
    assert dumps.call([]) == b"[]"


class OnlyHere:
    """A class that the child cannot import, as those of a script are."""


def test_arguments_that_only_we_can_read_are_named_and_end_no_child(
    dumps: ChildInterpreter[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps.call(1)
    pid = dumps.pid
    monkeypatch.setattr(OnlyHere, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "OnlyHere", OnlyHere, raising=False)
    with pytest.raises(ChildInterpreterError, match=r"do not unpickle.*OnlyHere"):
        dumps.call(OnlyHere())
    assert dumps.call(2) == b"2"
    assert dumps.pid == pid


@pytest.mark.parametrize("error", [MemoryError(), AttributeError("no such class"), KeyboardInterrupt()])
def test_an_answer_that_was_not_taken_is_given_to_nobody_else(
    dumps: ChildInterpreter[bytes], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(_: io.BufferedReader) -> bytes:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(child_interpreter, "_receive", fail)
        with pytest.raises(ChildInterpreterError if isinstance(error, Exception) else type(error)):
            dumps.call({"whose": "first"})
    assert dumps.call({"whose": "second"}) == b'{"whose":"second"}'


def test_closing_does_not_wait_for_a_child_that_hangs(
    dumps: ChildInterpreter[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_interpreter, "_CLOSE_PATIENCE_S", 0.1)
    dumps.call({})
    assert dumps.pid is not None
    os.kill(dumps.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(dumps.call, {"large": "x" * 10_000_000})
        while not dumps._lock.locked():
            time.sleep(0.001)
        dumps.close()
        with pytest.raises(ChildInterpreterError, match="ended"):
            call.result(20)


def test_many_threads_get_their_own_answers(dumps: ChildInterpreter[bytes]) -> None:
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(dumps.call, range(400)))
    assert found == [str(number).encode() for number in range(400)]


def test_closing_ends_the_child_and_refuses_further_calls(dumps: ChildInterpreter[bytes]) -> None:
    dumps.call(1)
    pid = dumps.pid
    assert pid is not None
    dumps.close()
    dumps.close()
    until_gone(pid)
    with pytest.raises(ChildInterpreterError, match="closed"):
        dumps.call(1)


def test_a_child_does_not_outlive_a_killed_parent() -> None:
    code = (
        "from gym_ray.child_interpreter import ChildInterpreter; from gym_ray import exact_json\n"
        "child = ChildInterpreter(exact_json.dumps); child.call(1); print(child.pid, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    until_gone(pid)
