"""What a capture writer stands on: where its records, its open calls, its registration and its marks go.

A writer does the same for every place: it decides what is recorded, what is marked and what is told. A backend only
makes records durable, and says where they are.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gym_ray.errors import CaptureError, StorageError
from gym_ray.model_call_capture.marks import MarkPlace
from gym_ray.model_call_capture.open_log import OpenLog
from gym_ray.model_call_capture.recovery import adopt_dead_logs
from gym_ray.model_call_capture.registry import RegisteredWriter, WriterRegistry
from gym_ray.model_call_capture.store import CaptureStore, capture_file_name
from gym_ray.model_call_capture.ticket import Ticket
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.group_commit import GroupCommit
from gym_ray.storage.line_files import LineFiles
from gym_ray.storage.local_calls import file_calls_for
from gym_ray.storage.probe import check_directory

__all__ = ["CaptureBackend", "Commits", "FileBackend", "OpenedBackend", "OpenedFiles", "WriterIdentity"]


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """Who a writer is.

    Attributes:
        writer_id: Label and epoch; unique.
        label: What all writers of one server have in common, fit for a file name.
        server_name: Name of the model server, None for a writer without one.
        url: Root URL of its server, None when it cannot be asked over HTTP.
        run_token: What its routes want as bearer token.
    """

    writer_id: str
    label: str
    server_name: str | None
    url: str | None
    run_token: str | None

    def registration(self, open_log: str | None) -> RegisteredWriter:
        """Return what is registered of a writer of this process that starts now."""
        return RegisteredWriter(
            writer_id=self.writer_id,
            server_name=self.server_name,
            open_log=open_log,
            url=self.url,
            run_token=self.run_token,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=time.time(),
        )


class Commits(Protocol):
    """Makes tickets durable; each is told its outcome, and then the listener that it has one."""

    def submit(self, item: Ticket) -> None:
        """Take a ticket.

        Raises:
            StorageError: It was not taken.
        """

    def close(self, timeout_s: float) -> bool:
        """Take no more, finish what was taken; whether everything has its outcome."""


class OpenedBackend(Protocol):
    """A backend at work for one writer."""

    @property
    def open_log(self) -> OpenLog:
        """Where the writer notes which calls are open."""

    @property
    def commits(self) -> Commits:
        """Where its records go."""

    @property
    def marks_first(self) -> bool:
        """Whether a lost record's mark is tried once before its answer leaves; else it is kept in memory at first."""

    def name_of(self, rollout_id: str, part: int) -> str:
        """Return the name of the file or segment that a record is in."""

    def last_segment(self) -> int | None:
        """Return the highest number of a segment that was given out; None where there are no segments."""

    def withdraw(self, call_ids: Sequence[str]) -> None:
        """Make sure that no record of calls that the index calls withdrawn is written from now on; may block.

        Raises:
            CaptureError: That cannot be promised.
        """

    def sign_off(self, *, finished: bool, marked: bool) -> None:
        """Take the writer out of the registry, once its commits are closed.

        Args:
            finished: Everything taken had its outcome.
            marked: Every mark is durable.

        Raises:
            OSError: It could not be done.
        """


class CaptureBackend(MarkPlace, Protocol):
    """A place for the records of one writer."""

    @property
    def place(self) -> str:
        """Where they go, for messages; holds no credentials."""

    def open(
        self,
        identity: WriterIdentity,
        *,
        on_done: Callable[[Sequence[Ticket]], None],
        open_calls: Callable[[], int],
    ) -> OpenedBackend:
        """Check the place, take over what dead epochs of the same server left, register the writer.

        Args:
            identity: Who it is.
            on_done: Told, on a thread, about tickets that have their outcome.
            open_calls: Says how many calls are open now.

        Raises:
            CaptureError: The place cannot be used, or what a dead server left cannot be adopted; names it.
        """


@dataclass(frozen=True, slots=True)
class OpenedFiles:
    """Files at work for one writer."""

    open_log: OpenLog
    registry: WriterRegistry
    files: LineFiles
    commits: GroupCommit[Ticket]
    writer_id: str
    marks_first: bool = True

    def name_of(self, rollout_id: str, part: int) -> str:  # noqa: ARG002 - a rollout has one file
        """Return the name of the rollout's file."""
        return capture_file_name(rollout_id)

    def last_segment(self) -> int | None:
        """Return None: there are no segments."""
        return None

    def withdraw(self, call_ids: Iterable[str]) -> None:
        """Do nothing: under the file's lock each line is asked whether it is still wanted."""

    def sign_off(self, *, finished: bool, marked: bool) -> None:  # noqa: ARG002 - the log stays for what is open
        """Take the writer out of the registry and give up its log; see the protocol."""
        try:
            self.registry.remove(self.writer_id)
            self.open_log.close()
        finally:
            if finished:
                self.files.close()


class FileBackend:
    """A directory with locks: one file per rollout (A §7).

    Args:
        root: Absolute capture directory.
        threads: Commit threads; None for as many as suit the file system of the directory.
        max_handles: Capture files kept open.
        calls: How the operating system is called.
    """

    def __init__(
        self, root: Path, *, threads: int | None = None, max_handles: int = 256, calls: FileCalls | None = None
    ) -> None:
        self._calls = calls or file_calls_for(root)
        self._threads, self._max_handles = threads or self._calls.threads, max_handles
        self.store = CaptureStore(root, calls=self._calls)
        self.place = str(self.store.root)

    def mark_incomplete(self, rollout_id: str) -> None:
        """Put a marker beside the rollout's file; see the protocol."""
        self.store.mark_incomplete(rollout_id)

    def open(
        self,
        identity: WriterIdentity,
        *,
        on_done: Callable[[Sequence[Ticket]], None],
        open_calls: Callable[[], int],  # noqa: ARG002 - what waits for one file is written at once
    ) -> OpenedFiles:
        """Begin to write files; see the protocol."""
        root = self.store.root
        try:
            check_directory(root, self._calls)
        except StorageError as error:
            raise CaptureError(str(error)) from error
        adopt_dead_logs(self.store, identity.label, calls=self._calls)
        open_log = OpenLog(root, f"{identity.writer_id}.log", calls=self._calls)
        registry = WriterRegistry(root, calls=self._calls)
        try:
            registry.add(identity.registration(open_log.path.name))
        except StorageError as error:
            open_log.close()
            raise CaptureError(f"{root}: the writer cannot be registered: {error}") from error
        files = LineFiles(root, calls=self._calls, max_handles=self._max_handles)
        return OpenedFiles(
            open_log=open_log,
            registry=registry,
            files=files,
            commits=GroupCommit(files, on_done=on_done, threads=self._threads, name="capture"),
            writer_id=identity.writer_id,
        )
