"""Several processes of this machine in place of nodes, where there is no cluster.

They show what one machine can show: rights, space, locks, a store's answers. They cannot show another mount.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from gym_ray.errors import StorageError
from gym_ray.storage.shared_place.hands import open_hand, take_step
from gym_ray.storage.shared_place.place_calls import PlaceCalls

__all__ = ["ProcessNode", "process_nodes"]

_CLOSE_S = 5.0


class ProcessNode:
    """A process, as :class:`gym_ray.storage.shared_place.hands.ProbeNode`.

    It ends with its parent, however that ends, and takes its files away first.
    """

    def __init__(
        self,
        name: str,
        where: str,
        storage_options: Mapping[str, Any],
        run: str,
        me: int,
        make_calls: Callable[[], PlaceCalls] = PlaceCalls,
    ) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")  # a forked client of an object store hangs
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, where, dict(storage_options), run, me, make_calls)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self._asking = ThreadPoolExecutor(1, thread_name_prefix=f"ask-{me}")
        self._closed = False

    def start(self, step: str, *arguments: Any) -> Future[Any]:
        """Tell the process to take a step."""
        return self._asking.submit(self._ask, step, arguments)

    def _ask(self, step: str, arguments: tuple[Any, ...]) -> Any:
        try:
            self._pipe.send((step, arguments))
            succeeded, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise StorageError(f"{self.name} has ended") from error
        if not succeeded:
            raise StorageError(answer)
        return answer

    def close(self) -> None:
        """End the process, idempotent; one that hangs is killed."""
        if self._closed:
            return
        self._closed = True
        ended = self._asking.submit(self._pipe.close)  # behind what it is being asked
        wait([ended], timeout=_CLOSE_S)
        self.process.join(_CLOSE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._asking.shutdown(wait=True)
        self._pipe.close()


def _serve(
    pipe: Connection,
    where: str,
    storage_options: Mapping[str, Any],
    run: str,
    me: int,
    make_calls: Callable[[], PlaceCalls],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks, who then says what to take away
    hand, told = None, False
    while True:
        try:
            step, arguments = pipe.recv()
        except (EOFError, OSError):
            break
        told = step == "finish"
        try:
            hand = hand or open_hand(where, storage_options, run, me, make_calls)
            answer = (True, take_step(hand, step, arguments))
        except Exception as error:  # noqa: BLE001 - boundary: whatever went wrong is told to whoever asked
            answer = (False, str(error) or type(error).__name__)
        with suppress(OSError):  # nobody is there to be told
            pipe.send(answer)
    if hand is not None and not told:
        for step in ("sweep", "finish"):
            with suppress(OSError):  # whoever would have been told was killed
                take_step(hand, step, ())


@contextmanager
def process_nodes(
    where: str, storage_options: Mapping[str, Any], run: str, count: int = 3
) -> Iterator[list[ProcessNode]]:
    """Hold several processes that look at a place for the block.

    Args:
        where: An absolute path, or a URL.
        storage_options: What fsspec is given for a URL.
        run: What the examination is called.
        count: How many processes.
    """
    nodes: list[ProcessNode] = []
    try:
        for me in range(count):
            node = ProcessNode(f"process {me + 1}", where, storage_options, run, me)
            nodes.append(node)
        yield nodes
    finally:
        for node in nodes:
            node.close()
