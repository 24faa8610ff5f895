"""Host a staging sink for workers that cannot reach the storage themselves: calls come as Arrow, keys go back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from gym_ray.actors.health import Watched
from gym_ray.settings import StagingSettings
from gym_ray.token_id_capture.staging import StagedCallRecord, StageResult
from gym_ray.token_id_capture.staging.parquet import ParquetStagingSink, decode_call, encode_call

__all__ = ["RemoteStagingSink", "StagingWriterHost"]

_CALLS_AT_ONCE = 64
"""Each waits on a thread of its own until its segment is published."""


class StagingWriterHost(Watched):
    """Commits what workers send; many calls that wait at the same time go into one segment.

    Args:
        staging: Where the calls go.
    """

    def __init__(self, staging: StagingSettings) -> None:
        super().__init__()
        self._staging = staging
        self._sink: ParquetStagingSink | None = None
        self._threads = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="stage")
        self._up = asyncio.get_running_loop().create_task(self._begin(self._open()))

    async def _open(self) -> str:
        staging = self._staging
        self._sink = await asyncio.to_thread(
            ParquetStagingSink,
            staging.where,
            partition=staging.partition,
            storage_options=staging.storage_options,
            timeout_s=staging.timeout_s,
        )
        return staging.where

    async def ready(self) -> None:
        """Return once calls can be staged.

        Raises:
            StorageError: The storage cannot be used; the message names it.
        """
        await asyncio.shield(self._up)

    async def stage(self, call: bytes) -> dict[str, Any]:
        """Stage one call and return the result's members once it is durable, or why it is not.

        Args:
            call: The record and its attachments, as :func:`encode_call` wrote them.
        """
        await self.ready()
        assert self._sink is not None  # ready() returned
        result = await asyncio.get_running_loop().run_in_executor(self._threads, _stage, self._sink, call)
        return result.model_dump()

    async def close(self) -> None:
        """Finish what was taken and close the storage; idempotent."""
        self._up.cancel()
        if self._sink is not None:
            await asyncio.to_thread(self._sink.close)
        self._threads.shutdown(wait=False)


def _stage(sink: ParquetStagingSink, call: bytes) -> StageResult:
    record, attachments = decode_call(call)
    return sink.stage_prepared(record, attachments)


class RemoteStagingSink:
    """A staging sink for a worker: everything is committed by a writer actor, and a key means that it is durable.

    Args:
        writer: Handle of a :class:`StagingWriterHost`.
        timeout_s: Longest wait for a call; one that is not answered in time is not captured, even if the writer
            commits it later.
    """

    def __init__(self, writer: Any, *, timeout_s: float = 60.0) -> None:
        self._writer, self._timeout_s = writer, timeout_s

    def stage(self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None) -> StageResult:
        """Stage one call; see :class:`gym_ray.token_id_capture.staging.StagingSink`. Attachments travel bit by bit.

        Raises:
            ValueError: An attachment cannot be stored; the message names it.
            TypeError: The same.
        """
        reference = self._writer.stage.remote(encode_call(record, attachments))
        try:
            return StageResult.model_validate(ray.get(reference, timeout=self._timeout_s))
        except GetTimeoutError:
            return StageResult(ok=False, error=f"the staging writer did not answer within {self._timeout_s:g} s")
        except RayError as error:
            return StageResult(ok=False, error=f"the staging writer failed: {type(error).__name__}: {error}")
