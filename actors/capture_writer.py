"""Host the writing of captures for model servers without the mount: batches of records come, receipts go back."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from gym_ray.actors.health import Watched
from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import CaptureError, GymRayError
from gym_ray.model_call_capture.hosted.channel import HostedRecord, Receipt
from gym_ray.model_call_capture.hosted.files import HostedFiles
from gym_ray.model_call_capture.hosted.stores import HostedStores
from gym_ray.model_call_capture.registry import RegisteredWriter

__all__ = ["ActorChannel", "CaptureWriterHost", "local_directory"]

_T = TypeVar("_T")
_BATCHES_AT_ONCE = 32
"""Each waits on a thread of its own until its records are durable."""
_PAUSE_S = 0.2
"""Between two attempts to reach a writer whose process is being started again."""
_REGISTER_TIMEOUT_S = 60.0


def local_directory() -> Path:
    """Return this machine's directory for what must survive a process, and need not survive the machine."""
    return Path(tempfile.gettempdir()) / f"gym-ray-{os.getuid()}"


class CaptureWriterHost(Watched):
    """Writes the captures of any number of model servers into one directory, or to one object store.

    Args:
        location: Where captures go.
    """

    def __init__(self, location: CaptureLocation) -> None:
        super().__init__()
        self._location = location
        self._files: HostedFiles | None = None
        self._stores: HostedStores | None = None
        self._threads = ThreadPoolExecutor(_BATCHES_AT_ONCE, thread_name_prefix="captures")
        self._up = asyncio.get_running_loop().create_task(self._begin(self._open()))

    async def _open(self) -> str:
        directory = self._location.directory
        if directory is None:
            self._stores = await asyncio.to_thread(HostedStores, self._location)
            return self._stores.place
        self._files = await asyncio.to_thread(HostedFiles, directory)
        return str(directory)

    async def ready(self) -> str:
        """Return the place once records can be written.

        Raises:
            SettingsError: Nothing that is installed can open the place.
            CaptureError: It cannot be used; the message names it.
            StorageError: The same.
        """
        return await asyncio.shield(self._up)

    async def append_many(self, records: Sequence[HostedRecord], again: bool) -> Sequence[Receipt]:
        """Make records durable; see :class:`gym_ray.model_call_capture.hosted.channel.RecordChannel`."""
        return await self._run(lambda files: files.append_many(records, again=again))

    async def withdraw(self, call_ids: Sequence[str]) -> None:
        """Make sure that no record of these calls is written from now on."""
        await self._run(lambda files: files.withdraw(call_ids))

    async def mark_incomplete(self, rollout_id: str) -> None:
        """Mark a rollout as having lost a record, durably."""
        await self._run(lambda files: files.mark_incomplete(rollout_id))

    async def lost_calls(self, writer_id: str, open_calls: Mapping[str, str]) -> Mapping[str, list[str]]:
        """Return which of these calls are recorded nowhere."""
        return await self._run(lambda files: files.lost_calls(writer_id, open_calls))

    async def register(self, writer: RegisteredWriter) -> None:
        """Register a model server's writer."""
        await self._run(lambda files: files.register(writer))

    async def remove_writer(self, writer_id: str) -> None:
        """Take a writer out of the registry."""
        await self._run(lambda files: files.remove_writer(writer_id))

    async def call_store(self, own: bool, method: str, arguments: Sequence[Any]) -> Any:
        """Call a store of the place; see :class:`gym_ray.model_call_capture.hosted.stores.StoreChannel`."""
        await self.ready()
        if self._stores is None:
            raise CaptureError(f"{self._location}: a directory, so it takes records and no segments")
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._stores.call_store, own, method, arguments
        )

    async def close(self) -> None:
        """Finish what was taken; idempotent."""
        self._up.cancel()
        for part in (self._files, self._stores):
            if part is not None:
                await asyncio.to_thread(part.close)
        self._threads.shutdown(wait=False)

    async def _run(self, work: Callable[[HostedFiles], _T]) -> _T:
        await self.ready()
        if self._files is None:
            raise CaptureError(f"{self._location}: not a directory, so it takes segments and no records")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, self._files)


class ActorChannel:
    """The way to a :class:`CaptureWriterHost`; implements ``HostedChannel``. Blocks its own thread.

    A writer whose process is started again gets the same batch once more, and finds what is written of it already.

    Args:
        name: Name of the actor.
        namespace: Its namespace.
        timeout_s: Longest wait for a batch to be durable.
    """

    def __init__(self, name: str, namespace: str, *, timeout_s: float = 30.0) -> None:
        self._name, self._namespace, self._timeout_s = name, namespace, timeout_s
        try:
            self._writer = ray.get_actor(name, namespace=namespace)
        except ValueError as error:
            raise CaptureError(f"no capture writer {name} in namespace {namespace}: {error}") from error
        self.place: str = self._call("ready", timeout_s=_REGISTER_TIMEOUT_S)

    def append_many(self, records: Sequence[HostedRecord], *, again: bool = False) -> Sequence[Receipt]:
        """Make records durable; see the protocol."""
        receipts: Sequence[Receipt] = self._call("append_many", records, repeat=True, again=again)
        return receipts

    def withdraw(self, call_ids: Sequence[str]) -> None:
        """See the protocol."""
        self._call("withdraw", call_ids)

    def mark_incomplete(self, rollout_id: str) -> None:
        """See the protocol."""
        self._call("mark_incomplete", rollout_id)

    def lost_calls(self, writer_id: str, open_calls: Mapping[str, str]) -> Mapping[str, list[str]]:
        """See the protocol."""
        lost: Mapping[str, list[str]] = self._call("lost_calls", writer_id, open_calls)
        return lost

    def register(self, writer: RegisteredWriter) -> None:
        """See the protocol."""
        self._call("register", writer)

    def remove_writer(self, writer_id: str) -> None:
        """See the protocol."""
        self._call("remove_writer", writer_id)

    def call_store(self, own: bool, method: str, arguments: Sequence[Any]) -> Any:
        """See :class:`gym_ray.model_call_capture.hosted.stores.StoreChannel`."""
        return self._call("call_store", own, method, arguments)

    def _call(
        self, method: str, *arguments: Any, repeat: bool = False, again: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Call the actor until it answers; what it cannot have answered in time raises ``CaptureError``."""
        until = time.monotonic() + (timeout_s or self._timeout_s)
        while True:
            given = (*arguments, again) if repeat else arguments
            try:
                left_s = max(0.0, until - time.monotonic())
                return ray.get(getattr(self._writer, method).remote(*given), timeout=left_s)
            except RayTaskError as error:
                cause = error.cause
                raise cause if isinstance(cause, GymRayError) else self._problem(method, error) from error
            except RayActorError as error:  # it died or cannot be reached; Ray may start it again
                if time.monotonic() + _PAUSE_S >= until:
                    raise self._problem(method, error) from error
                self._find_again()
            except (GetTimeoutError, RayError) as error:
                raise self._problem(method, error) from error
            again = True
            time.sleep(_PAUSE_S)

    def _find_again(self) -> None:
        with suppress(ValueError):  # nobody has the name now; the next call says so
            self._writer = ray.get_actor(self._name, namespace=self._namespace)

    def _problem(self, method: str, error: Exception) -> CaptureError:
        return CaptureError(f"capture writer {self._name} did not {method}: {type(error).__name__}: {error}")
