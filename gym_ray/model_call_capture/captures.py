"""The one door to captured model calls for whoever reads or clears them, wherever they are kept.

What is recorded, what was lost and what nobody can know is answered alike for a directory and for an object store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import httpx

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import CaptureError
from gym_ray.model_call_capture.heard_writers import HeardWriters
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls, forget, list_written_calls
from gym_ray.model_call_capture.reading_clock import ReadingClock
from gym_ray.model_call_capture.recovery import clear_rollout
from gym_ray.model_call_capture.registry import OWN_DIRECTORY
from gym_ray.model_call_capture.segments.reading import SegmentCaptures
from gym_ray.model_call_capture.store import CAPTURE_SUFFIX, INCOMPLETE_SUFFIX, CaptureStore
from gym_ray.storage.posix import OWNER_ONLY, PosixStore

__all__ = ["Captures", "FileCaptures", "open_captures", "open_existing_captures"]


class Captures(Protocol):
    """Captures of a place. One object per process; blocking methods run on threads, several at once."""

    @property
    def place(self) -> str:
        """Where they are, for messages; holds no credentials."""

    async def written_calls(
        self,
        rollout_ids: Sequence[str],
        *,
        client: httpx.AsyncClient,
        timeout_s: float,
        begun_at: float | None = None,
    ) -> dict[str, WrittenCalls]:
        """Return what the writers say of these rollouts, one entry for each; what cannot be known is in it.

        Args:
            rollout_ids: Rollouts to ask about.
            client: Pooled HTTP client.
            timeout_s: How long a writer may wait for open calls to end.
            begun_at: When the attempts began, unix seconds; None when nobody knows.

        Raises:
            CaptureError: What dead writers left cannot be read, or a rollout that lost a call cannot be marked.
            StorageError: The writers cannot be listed.
        """

    async def forget(
        self, rollout_ids: Sequence[str], *, client: httpx.AsyncClient, withdraw_open: bool = True
    ) -> tuple[str, ...]:
        """Tell the living writers that nobody asks about these rollouts again, or that they begin anew.

        Args:
            rollout_ids: Rollouts to forget.
            client: Pooled HTTP client.
            withdraw_open: Calls that are open now belong to an attempt that is over.

        Returns:
            The writers that could not be told.

        Raises:
            StorageError: The writers cannot be listed.
        """

    def snapshot(self, rollout_id: str, calls: WrittenCalls | None) -> CaptureSnapshot:
        """Return everything that is recorded of a rollout; what cannot be read is said, not raised.

        Args:
            rollout_id: The rollout.
            calls: What :meth:`written_calls` said of it, None when nobody was asked.

        Raises:
            RolloutIdError: The id cannot be a name here.
        """

    def clear(self, rollout_id: str) -> None:
        """Empty a rollout's capture before its attempt is dispatched; durable when it returns (A83).

        Tell the living writers before (:meth:`forget`): what they record of earlier attempts may come after it else.

        Raises:
            RolloutIdError: The id cannot be a name here.
            CaptureError: It could not be done; the attempt must not run.
            StorageError: The same.
        """

    def rollout_ids(self) -> Iterator[str]:
        """Yield every rollout that has a record or a mark, each once, in no order.

        Raises:
            CaptureError: The place cannot be listed.
        """

    def is_incomplete(self, rollout_id: str) -> bool:
        """Return whether a rollout is marked as having lost a record.

        Raises:
            RolloutIdError: The id cannot be a name here.
            CaptureError: It cannot be found out.
        """

    def close(self) -> None:
        """Give up connections; idempotent."""


class FileCaptures:
    """Captures in a directory that is shared, with locks: one file per rollout (A §7).

    Args:
        root: The directory; nothing is created by opening it.
        clock: Clocks.
    """

    def __init__(self, root: Path, *, clock: ReadingClock | None = None) -> None:
        self.root = root
        self._store = CaptureStore(root)
        # Writers that hand their records to another process have no log here whose lock would tell whether they live.
        own = PosixStore(root / OWN_DIRECTORY, mode=OWNER_ONLY)
        self._logless = HeardWriters(own, clock or ReadingClock())

    @property
    def place(self) -> str:
        """The directory."""
        return str(self.root)

    async def written_calls(
        self,
        rollout_ids: Sequence[str],
        *,
        client: httpx.AsyncClient,
        timeout_s: float,
        begun_at: float | None = None,
    ) -> dict[str, WrittenCalls]:
        """Ask every writer; see the protocol."""
        return await list_written_calls(
            self.root, rollout_ids, client=client, timeout_s=timeout_s, logless=self._logless, begun_at=begun_at
        )

    async def forget(
        self, rollout_ids: Sequence[str], *, client: httpx.AsyncClient, withdraw_open: bool = True
    ) -> tuple[str, ...]:
        """Tell the living writers; see the protocol."""
        return await forget(self.root, rollout_ids, client=client, withdraw_open=withdraw_open, logless=self._logless)

    def snapshot(self, rollout_id: str, calls: WrittenCalls | None) -> CaptureSnapshot:  # noqa: ARG002 - one file
        """Return the file's bytes, read under its lock, and the marker; see the protocol."""
        return self._store.snapshot(rollout_id)

    def clear(self, rollout_id: str) -> None:
        """Truncate the file and remove its marker; see the protocol."""
        clear_rollout(self._store, rollout_id)

    def rollout_ids(self) -> Iterator[str]:
        """Yield the rollouts of all capture files and markers; see the protocol."""
        try:
            with os.scandir(self.root) as entries:
                names = [entry.name for entry in entries]
        except OSError as error:
            raise CaptureError(f"{self.root}: cannot be listed: {error}") from error
        found = {
            name.removesuffix(suffix)
            for name in names
            for suffix in (CAPTURE_SUFFIX, INCOMPLETE_SUFFIX)
            if name.endswith(suffix)
        }
        yield from found

    def is_incomplete(self, rollout_id: str) -> bool:
        """Return whether the marker is there; see the protocol."""
        return self._store.is_incomplete(rollout_id)

    def close(self) -> None:
        """Do nothing: no file is held open."""


def open_captures(location: CaptureLocation) -> Captures:
    """Return the captures of a place, without touching it yet.

    Raises:
        SettingsError: Nothing that is installed can open the URL, or its client knows an option by another name.
    """
    if location.directory is not None:
        return FileCaptures(location.directory)
    return SegmentCaptures.of(location)


def open_existing_captures(location: CaptureLocation) -> Captures:
    """Return the captures of a place for somebody who only looks at it: a directory must be there.

    Raises:
        CaptureError: The directory is not there.
        SettingsError: Nothing that is installed can open the URL.
    """
    if location.directory is not None and not location.directory.is_dir():
        raise CaptureError(f"{location}: not a directory; name the model_call_capture_dir of a run")
    return open_captures(location)
