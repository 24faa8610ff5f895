"""Threads for sinks: as many as are busy at once, reused, and gone when nothing is left to do."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

from gym_ray.testing.waiting import until
from gym_ray.token_id_capture.staging.staging_threads import StagingThreads

WAIT_S = 30.0


def ran(threads: StagingThreads, work: Callable[[], None]) -> None:
    done = threading.Event()
    threads.run(work, done.set)
    assert done.wait(WAIT_S)


def test_an_idle_thread_takes_the_next_work() -> None:
    threads, names = StagingThreads(), set[int]()
    for _ in range(20):
        ran(threads, lambda: names.add(threading.get_ident()))
    assert len(names) == threads.alive == 1
    assert threads.busy == 0
    assert threads.close(WAIT_S) == 0


def test_there_are_as_many_threads_as_are_busy_at_once() -> None:
    threads, line, ended = StagingThreads(), threading.Barrier(9), threading.Semaphore(0)
    for _ in range(3):
        for _ in range(8):
            threads.run(lambda: line.wait(WAIT_S) and None, ended.release)
        line.wait(WAIT_S)
        for _ in range(8):
            assert ended.acquire(timeout=WAIT_S)
    assert threads.alive == 8
    assert threads.close(WAIT_S) == 0


async def test_idle_threads_end_by_themselves_or_when_closed() -> None:
    short, long = StagingThreads(idle_s=0.01), StagingThreads(idle_s=WAIT_S)
    for threads in (short, long):
        ran(threads, lambda: None)
    await until(lambda: short.alive == 0)
    ran(short, lambda: None)
    assert long.alive == 1
    assert long.close() == 0
    await until(lambda: long.alive == 0)


async def test_every_idle_thread_ends_when_closed() -> None:
    threads, line, ended = StagingThreads(idle_s=WAIT_S), threading.Barrier(32), threading.Semaphore(0)
    for _ in range(32):
        threads.run(lambda: line.wait(WAIT_S) and None, ended.release)
    for _ in range(32):
        assert ended.acquire(timeout=WAIT_S)
    assert threads.close(WAIT_S) == 0
    await until(lambda: threads.alive == 0)
    ran(threads, lambda: None)
    assert threads.close(WAIT_S) == 0


async def test_work_that_comes_when_a_thread_is_about_to_end_is_done() -> None:
    threads, done = StagingThreads(idle_s=0), threading.Semaphore(0)
    for _ in range(500):
        threads.run(lambda: None, done.release)
        assert done.acquire(timeout=WAIT_S)
    await until(lambda: threads.alive == 0)


def test_work_that_hangs_is_counted_when_closed() -> None:
    threads, gate = StagingThreads(), threading.Event()
    threads.run(lambda: gate.wait(WAIT_S) and None, lambda: None)
    assert threads.close(0.01) == 1
    gate.set()
    assert threads.close(WAIT_S) == 0


class Media:
    """Something large."""


async def test_an_idle_thread_holds_nothing_of_its_work() -> None:
    threads, media = StagingThreads(), Media()
    gone = weakref.ref(media)

    def work(held: Media = media) -> None:
        assert held is not None

    ran(threads, work)
    del media, work
    await until(lambda: gone() is None)
    assert threads.alive == 1
    assert threads.close(WAIT_S) == 0


def test_a_sink_that_hangs_does_not_keep_the_process_from_ending() -> None:
    code = (
        "import threading\n"
        "from gym_ray.token_id_capture.staging.staging_threads import StagingThreads\n"
        "begun = threading.Event()\n"
        "def hang():\n"
        "    begun.set()\n"
        "    threading.Event().wait()\n"
        "StagingThreads().run(hang, lambda: None)\n"
        "assert begun.wait(30)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=50, check=False).returncode == 0
