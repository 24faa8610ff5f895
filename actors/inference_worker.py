"""Host an inference worker: an engine whose tokens are staged before its answers leave."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp

from gym_ray.actors.http_host import HttpHost
from gym_ray.inference_worker.app import build_worker_app
from gym_ray.inference_worker.prefixes import StagedPrefixes
from gym_ray.inference_worker.staging_engine import StagingEngine
from gym_ray.inference_worker.weights import WeightVersion
from gym_ray.model_server.engines import build_engine
from gym_ray.settings import ServerSettings, StagingSettings
from gym_ray.storage.opening import open_store
from gym_ray.token_id_capture.staging import AsyncRolloutTokenCapture, RolloutTokenCapture
from gym_ray.token_id_capture.staging.parquet import ParquetStagingSink, ParquetStagingSource

__all__ = ["InferenceWorkerHost"]

_CALLS_AT_ONCE = 256


class InferenceWorkerHost(HttpHost):
    """One worker. It keeps nothing that storage does not: a restarted one continues every chain from there.

    Args:
        server: Settings of the model server whose engine this worker serves.
        staging: Where its tokens go.
        api_key: What its callers must send.
        engine_url: Root URL of this node's llama.cpp server, where the engine is the embedded one.
        host: Address to bind.
        port: Port to bind.
    """

    def __init__(
        self,
        server: ServerSettings,
        staging: StagingSettings,
        api_key: str,
        engine_url: str | None,
        host: str,
        port: int,
    ) -> None:
        self._settings, self._staging = server, staging
        self._api_key, self._engine_url = api_key, engine_url
        self._engine: StagingEngine | None = None
        self._capture: AsyncRolloutTokenCapture | None = None
        self._sink: ParquetStagingSink | None = None
        super().__init__(f"worker of {server.name}", host, port)

    async def _open(self) -> ASGIApp:
        engine = build_engine(self._settings, local_engine_url=self._engine_url)
        where, options = self._staging.where, self._staging.storage_options
        weights = await asyncio.to_thread(WeightVersion.kept_in, open_store(where, storage_options=options), self._name)
        self._sink = await asyncio.to_thread(
            ParquetStagingSink,
            where,
            partition=self._staging.partition,
            storage_options=options,
            timeout_s=self._staging.timeout_s,
        )
        source = await asyncio.to_thread(ParquetStagingSource, where, storage_options=options)
        self._capture = AsyncRolloutTokenCapture(
            RolloutTokenCapture(self._sink, weights), max_concurrent=_CALLS_AT_ONCE, timeout_s=self._staging.timeout_s
        )
        self._engine = StagingEngine(engine, self._capture, StagedPrefixes(source))
        await self._engine.start()
        return build_worker_app(self._engine, weights, name=self._name, api_key=self._api_key)

    async def _release(self) -> None:
        if self._engine is not None:
            await self._engine.aclose()
        if self._capture is not None:
            await self._capture.aclose()
        if self._sink is not None:
            await asyncio.to_thread(self._sink.close)
