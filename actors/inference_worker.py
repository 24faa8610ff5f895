"""Host an inference worker: an engine whose tokens are staged before its answers leave."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack

from starlette.types import ASGIApp

from gym_ray.actors.http_host import HttpHost
from gym_ray.actors.worker_metrics import WorkerMetricsPublisher
from gym_ray.inference_worker.app import build_worker_app
from gym_ray.inference_worker.prefixes import StagedPrefixes
from gym_ray.inference_worker.staging_engine import StagingEngine
from gym_ray.inference_worker.weights import WeightVersion
from gym_ray.model_server.engines import build_engine
from gym_ray.settings import ServerSettings, StagingSettings
from gym_ray.token_id_capture.staging import AsyncRolloutTokenCapture, RolloutTokenCapture
from gym_ray.token_id_capture.staging.parquet import (
    ParquetStagingSink,
    ParquetStagingSource,
    open_staging_store,
)

__all__ = ["InferenceWorkerHost"]

_CALLS_AT_ONCE = 256


class InferenceWorkerHost(HttpHost):
    """One worker. It keeps nothing that storage does not: a restarted one continues every chain from there.

    Args:
        server: Settings of the model server whose engine this worker serves.
        staging: Where its tokens go.
        name: Its name, which no other worker of the run has, and its restarted process has, too.
        api_key: What its callers must send.
        engine_url: Root URL of this node's llama.cpp server, where the engine is the embedded one.
        host: Address to bind.
        port: Port to bind.
    """

    def __init__(
        self,
        server: ServerSettings,
        staging: StagingSettings,
        name: str,
        api_key: str,
        engine_url: str | None,
        host: str,
        port: int,
    ) -> None:
        self._settings, self._staging = server, staging
        self._api_key, self._engine_url = api_key, engine_url
        # Another run may keep its tokens in the same store: what its worker was told is not for this one.
        self._kept_as = f"{name}-{hashlib.sha256(api_key.encode()).hexdigest()[:16]}"
        self._parts = AsyncExitStack()
        super().__init__(f"worker of {server.name}", host, port)

    async def _open(self) -> ASGIApp:
        engine = build_engine(self._settings, local_engine_url=self._engine_url)
        where = self._staging.where
        store = open_staging_store(where, self._staging.storage_options)
        self._parts.push_async_callback(asyncio.to_thread, store.close)
        weights = await asyncio.to_thread(WeightVersion.kept_in, store, self._kept_as)
        source = await asyncio.to_thread(ParquetStagingSource, where, store=store)
        self._parts.push_async_callback(asyncio.to_thread, source.close)
        timeout_s, partition = self._staging.timeout_s, self._staging.partition
        sink = await asyncio.to_thread(ParquetStagingSink, where, partition=partition, timeout_s=timeout_s, store=store)
        self._parts.push_async_callback(asyncio.to_thread, sink.close)
        capture = AsyncRolloutTokenCapture(
            RolloutTokenCapture(sink, weights), max_concurrent=_CALLS_AT_ONCE, timeout_s=timeout_s
        )
        metrics = WorkerMetricsPublisher(capture, self._name)
        self._parts.push_async_callback(metrics.close)
        self._parts.push_async_callback(capture.aclose)
        staging = StagingEngine(engine, capture, StagedPrefixes(source))
        self._parts.push_async_callback(staging.aclose)
        await staging.start()
        metrics.start()
        return build_worker_app(staging, weights, name=self._name, api_key=self._api_key)

    async def _release(self) -> None:
        await self._parts.aclose()  # each part is closed, whatever another one raises
