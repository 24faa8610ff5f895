"""The capture writer of one process: makes exchanges durable, or marks their rollouts, and can say which it did.

An exchange handed over is never lost silently: it is a durable line, or its rollout is marked, or (when the process is
killed) its begin stands in the open log without an end. No method here makes a model call fail.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from gym_ray.correlation import check_rollout_id
from gym_ray.errors import CaptureError, RolloutIdError, StorageError
from gym_ray.model_call_capture.acks import LoopAcks
from gym_ray.model_call_capture.backends import CaptureBackend, FileBackend, OpenedBackend, WriterIdentity
from gym_ray.model_call_capture.call_index import CallIndex
from gym_ray.model_call_capture.exchanges.encoding import RecordEncoder
from gym_ray.model_call_capture.exchanges.exchange import Exchange
from gym_ray.model_call_capture.exchanges.redaction import Redactor
from gym_ray.model_call_capture.exchanges.telemetry import CaptureCounts, CaptureTelemetry
from gym_ray.model_call_capture.marks import IncompleteMarks
from gym_ray.model_call_capture.open_log import log_name
from gym_ray.model_call_capture.refusals import RefusalLog
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_call_capture.ticket import Ticket
from gym_ray.storage.calls import FileCalls

__all__ = ["CaptureCounts", "CaptureWriter"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Running:
    """What a started writer owns."""

    backend: OpenedBackend
    marks: IncompleteMarks


class CaptureWriter:
    """Records exchanges into a capture directory, or wherever a backend puts them.

    Args:
        root: Absolute capture directory, or another place for records; of ``threads``, ``max_handles`` and ``calls``
            only a directory takes notice.
        server_name: Name of the model server, written into every record; None leaves it out.
        url: Root URL at which the server's quiesce route can be reached; may be set until :meth:`start`.
        run_token: What the quiesce route wants as bearer token.
        capture_timeout_s: How long an answer waits for its record before it is released and its rollout marked.
        threads: Commit threads; None for as many as suit the file system of the directory.
        max_handles: Capture files kept open.
        calls: How the operating system is called.
        redactor: Takes secrets out of every record before it is written; None writes what was seen.

    Attributes:
        counts: What it did so far.
        telemetry: The same in detail since the last drain, for whoever watches.
    """

    def __init__(
        self,
        root: Path | CaptureBackend,
        *,
        server_name: str | None,
        url: str | None = None,
        run_token: str | None = None,
        capture_timeout_s: float = 30.0,
        threads: int | None = None,
        max_handles: int = 256,
        calls: FileCalls | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self._encoder, self.telemetry, self._refusals = RecordEncoder(redactor), CaptureTelemetry(), RefusalLog(_log)
        if isinstance(root, Path):
            root = FileBackend(root, threads=threads, max_handles=max_handles, calls=calls)
        self._backend: CaptureBackend = root
        self.place = root.place
        self.server_name, self.url, self.run_token = server_name, url, run_token
        self.counts = CaptureCounts()
        self._timeout_s = capture_timeout_s
        self._index = CallIndex()
        self._acks: dict[asyncio.AbstractEventLoop, LoopAcks[Ticket]] = {}
        self._quiesce_waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        label = log_name(server_name or "unnamed", "").removesuffix("-.log")
        self._label = f"_{label}" if label.startswith(".") else label  # no store has names that begin with a dot
        self.writer_id = f"{self._label}-{secrets.token_hex(8)}"
        self._running: _Running | None = None
        self._closing = False
        # Ids must be unique, not secret; a generator of our own saves a system call, and its thread switch, a call.
        self._ids = random.Random(secrets.randbits(256))  # noqa: S311
        self._lock = threading.Lock()

    @property
    def store(self) -> CaptureStore:
        """The capture directory's files.

        Raises:
            CaptureError: The records do not go into a directory of this process's own.
        """
        if not isinstance(self._backend, FileBackend):
            raise CaptureError(f"{self.place}: there are no capture files")
        return self._backend.store

    def start(self) -> None:
        """Check the place, take over what dead epochs of the same server left, register; ready when it returns.

        Raises:
            CaptureError: The directory is relative, not writable, or has no working locks; the store cannot be written
                to; or a dead server's log cannot be adopted. Names the place.
        """
        identity = WriterIdentity(self.writer_id, self._label, self.server_name, self.url, self.run_token)
        backend = self._backend.open(identity, on_done=self._done, open_calls=self._index.open_count)
        self._running = _Running(backend, IncompleteMarks(self._backend, on_marked=self._end_in_log))

    def begin(self, rollout_id: str, dialect: str, client_session_id: str | None = None) -> Exchange | None:
        """Open an exchange, before its handler runs; None, logged and counted, when it cannot be captured (A16).

        Whoever gets an exchange hands it to :meth:`commit`, whatever happens.
        """
        try:
            check_rollout_id(rollout_id)
        except RolloutIdError as error:
            self._refuse(str(error))
            return None
        running = self._running
        if running is None or self._closing:
            self._refuse_late(rollout_id)
            return None
        call_id = f"{self._ids.getrandbits(128):032x}"
        self._index.begin(call_id, rollout_id)
        try:
            running.backend.open_log.begin(call_id, rollout_id)
        except OSError as error:
            # Without this line a crash in the middle would be silent, so the rollout is marked now.
            _log.warning("%s: cannot note that call %s of %s began: %s", self.place, call_id, rollout_id, error)
            running.marks.add(rollout_id, call_id)
        return Exchange(call_id, rollout_id, dialect, self.server_name, time.time(), client_session_id)

    def submit(self, exchange: Exchange) -> asyncio.Future[None]:
        """Take an exchange over and return a future that ends as :meth:`commit` does. Call on an event loop.

        The exchange belongs to the writer when this returns: a caller that goes away loses nothing (A50).
        """
        running = self._require_running()
        ticket = Ticket(exchange, self._loop_acks(), self._index, self._encoder)
        future = ticket.acks.expect(ticket)
        try:
            running.backend.commits.submit(ticket)
        except StorageError as error:
            ticket.failed(error)
            asyncio.get_running_loop().run_in_executor(None, self._done, [ticket])
        return future

    async def commit(self, exchange: Exchange) -> None:
        """Return once the exchange's record is durable, or its rollout is marked; never fails the call (A3, A41).

        After ``capture_timeout_s`` it returns with the mark in memory, and on disk as soon as the disk lets it.
        """
        await self.submit(exchange)

    async def quiesce(
        self, rollout_ids: Sequence[str], timeout_s: float, forget: Iterable[str] = (), *, withdraw_open: bool = True
    ) -> dict[str, Any]:
        """Wait until no call of these rollouts is open, at most ``timeout_s``, and say what was written.

        Args:
            rollout_ids: Rollouts to report.
            timeout_s: Longest wait.
            forget: Rollouts whose lists are not needed any more; dropped before anything else.
            withdraw_open: The open calls of forgotten rollouts are of an attempt that is over. When this returns, no
                record of theirs reaches a file that is cleared afterwards; each is logged and counted when it ends.

        Returns:
            ``{"writer_id", "server_name", "rollouts": {id: {"open": [call id], "recorded": [[call id, file, offset,
            length]], "incomplete": bool}}}``; ``incomplete`` tells of a mark that may not be on disk yet. A writer of
            segments adds ``"last_segment"``, the highest number given out, and ``"withdrawn"``, the forgotten rollouts
            that had open calls: their records are in no segment above that number.

        Raises:
            RolloutIdError: An id cannot be a rollout id.
            CaptureError: It cannot be promised that withdrawn calls are not recorded.
        """
        running = self._require_running()
        withdrawn: dict[str, list[str]] = {}
        for rollout_id in forget:
            self._index.forget(rollout_id)
            if withdraw_open and (call_ids := self._withdraw(rollout_id)):
                withdrawn[rollout_id] = call_ids
        if withdrawn:
            await asyncio.to_thread(running.backend.withdraw, list(chain.from_iterable(withdrawn.values())))
        rollout_ids = [check_rollout_id(rollout_id) for rollout_id in rollout_ids]
        await self._wait_until_closed(rollout_ids, timeout_s)
        pending = running.marks.pending()
        rollouts = {}
        for rollout_id in rollout_ids:
            recorded = self._index.recorded_calls(rollout_id, running.backend.name_of)
            rollouts[rollout_id] = {
                "open": self._index.open_call_ids(rollout_id),
                "recorded": [[call.call_id, call.file, call.offset, call.length] for call in recorded],
                "incomplete": rollout_id in pending,
            }
        answer = {"writer_id": self.writer_id, "server_name": self.server_name, "rollouts": rollouts}
        last = running.backend.last_segment()
        return answer if last is None else answer | {"last_segment": last, "withdrawn": list(withdrawn)}

    def close(self, timeout_s: float = 30.0) -> None:
        """Finish what was handed over, mark what cannot be finished, take the writer out of the registry.

        Blocks up to about ``timeout_s``. Idempotent. An exchange committed after this is marked, not recorded.
        """
        running = self._running
        if running is None or self._closing:
            return
        self._closing = True
        self._refusals.close()
        deadline = time.monotonic() + timeout_s
        finished = running.backend.commits.close(timeout_s)
        for call_id, rollout_id in self._index.open_calls().items():
            running.marks.add(rollout_id, call_id)
        unmarked = running.marks.close(max(1.0, deadline - time.monotonic()))
        if unmarked:
            _log.error("%s: rollouts that lost records and could not be marked: %s", self.place, sorted(unmarked))
        try:
            running.backend.sign_off(finished=finished, marked=not unmarked)
        except OSError as error:
            _log.warning("%s: writer %s could not be signed off: %s", self.place, self.writer_id, error)
        self._encoder.close()

    def _done(self, tickets: Sequence[Ticket]) -> None:
        """Tell everybody about outcomes; runs on a commit thread. A failure is marked before its answer leaves."""
        recorded = sum([ticket.offset is not None for ticket in tickets])
        failed = [ticket for ticket in tickets if ticket.error is not None]
        withdrawn = len(tickets) - recorded - len(failed)
        if failed:
            self._mark_failed(failed)
        if withdrawn:
            self._tell_withdrawn(tickets)
        self._index.end(
            [(ticket.call_id, ticket.rollout_id, ticket.offset, ticket.length, ticket.part) for ticket in tickets]
        )
        with self._lock:
            self.counts.recorded += recorded
            self.counts.failed += len(failed)
            self.counts.withdrawn += withdrawn
        if len(tickets) == 1:
            tickets[0].acks.deliver(tickets)
        else:
            for acks in {ticket.acks for ticket in tickets}:
                acks.deliver([ticket for ticket in tickets if ticket.acks is acks])
        calls = [(ticket.outcome, ticket.length) for ticket in tickets]
        self.telemetry.record(calls, failed=len(failed), withdrawn=withdrawn)
        self._end_in_log([ticket.exchange.call_id for ticket in tickets if ticket.error is None])
        if self._quiesce_waiters:
            for loop, changed in list(self._quiesce_waiters):
                with suppress(RuntimeError):  # a loop that has ended, and its wait with it
                    loop.call_soon_threadsafe(changed.set)

    def _mark_failed(self, tickets: Sequence[Ticket]) -> None:
        lost: dict[str, list[str]] = {}
        for ticket in tickets:
            exchange, path = ticket.exchange, f"{self.place}/{ticket.file_name}"
            _log.warning("%s: call %s could not be recorded: %s", path, exchange.call_id, ticket.error)
            if ticket.wanted():
                lost.setdefault(exchange.rollout_id, []).append(exchange.call_id)
        running = self._require_running()
        for rollout_id, call_ids in lost.items():
            if running.backend.marks_first:
                running.marks.mark(rollout_id, call_ids)
            else:
                for call_id in call_ids:
                    running.marks.add(rollout_id, call_id)

    def _tell_withdrawn(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            if ticket.offset is None and ticket.error is None:
                _log.warning(
                    "%s: call %s ended after its rollout began anew; it is not recorded",
                    f"{self.place}/{ticket.file_name}",
                    ticket.exchange.call_id,
                )

    def _withdraw(self, rollout_id: str) -> list[str]:
        running = self._require_running()
        # The index goes first: what it calls withdrawn is neither written nor marked from now on.
        withdrawn = self._index.withdraw(rollout_id)
        running.marks.drop(rollout_id)
        try:
            running.backend.open_log.clear(rollout_id)
        except OSError as error:
            _log.warning("%s: cannot note that %s begins anew: %s", self.place, rollout_id, error)
        return withdrawn

    def _timed_out(self, ticket: Ticket) -> None:
        exchange = ticket.exchange
        with self._lock:
            self.counts.timed_out += 1
        self.telemetry.count(timed_out=1)
        _log.error(
            "%s: call %s took longer than %.3g s to record; its answer is released and the rollout marked incomplete",
            f"{self.place}/{ticket.file_name}",
            exchange.call_id,
            self._timeout_s,
        )
        if ticket.wanted():
            self._require_running().marks.add(exchange.rollout_id, exchange.call_id)

    def _end_in_log(self, call_ids: list[str]) -> None:
        try:
            self._require_running().backend.open_log.end(call_ids)
        except OSError as error:
            _log.warning("%s: cannot note that %d calls ended: %s", self.place, len(call_ids), error)

    async def _wait_until_closed(self, rollout_ids: Iterable[str], timeout_s: float) -> None:
        changed = asyncio.Event()
        waiter = (asyncio.get_running_loop(), changed)
        self._quiesce_waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                while any(self._index.has_open(rollout_id) for rollout_id in rollout_ids):
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            return  # what is still open is in the answer
        finally:
            self._quiesce_waiters.discard(waiter)

    def _refuse(self, reason: str) -> None:
        with self._lock:
            self.counts.refused += 1
        self.telemetry.count(refused=1)
        self._refusals.say(reason)

    def _refuse_late(self, rollout_id: str) -> None:
        self._refuse(f"{self.place}: the capture writer is not running")
        try:
            self._backend.mark_incomplete(rollout_id)
        except CaptureError as error:
            _log.error("%s", error)

    def _require_running(self) -> _Running:
        if self._running is None:
            raise CaptureError(f"{self.place}: the capture writer was not started")
        return self._running

    def _loop_acks(self) -> LoopAcks[Ticket]:
        loop = asyncio.get_running_loop()
        acks = self._acks.get(loop)
        if acks is None:
            acks = self._acks[loop] = LoopAcks(loop, self._timeout_s, self._timed_out)
        return acks
