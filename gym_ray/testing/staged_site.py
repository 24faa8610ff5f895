"""A model server over HTTP whose scripted worker stages the tokens of captured calls: for tests only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from starlette.types import ASGIApp

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.model_call_capture import CaptureWriter
from gym_ray.model_server.app import AppOptions, build_app
from gym_ray.model_server.bridged import BridgeOptions
from gym_ray.model_server.serving import AppServer
from gym_ray.model_server.upstream import UpstreamEngine
from gym_ray.model_server.vllm.engine import VllmBehaviour, VllmEngine
from gym_ray.testing.fake_upstream import FakeUpstream
from gym_ray.testing.staging_worker import ScriptedWorker
from gym_ray.token_id_capture.external_staging import ExternalStaging, WorkerBackend
from gym_ray.token_id_capture.kept_failures import FailureKeepingLedger
from gym_ray.token_id_capture.staging import CaptureLedger, ManifestFailure, RolloutManifest
from gym_ray.token_id_capture.staging.ledger.file_ledger import FileCaptureLedger

__all__ = ["CONTROL_TOKEN", "StagedSite", "staged_site"]

CONTROL_TOKEN = "bearer of the trainer"  # noqa: S105 - no secret outside of tests


@dataclass(frozen=True)
class StagedSite:
    """What serves.

    Attributes:
        url: Root URL of the model server.
        worker: Behind it.
        upstream: Serves the worker, and counts the calls whose client left.
        ledger: What the server asks.
        http: A client of the model server.
    """

    url: str
    worker: ScriptedWorker
    upstream: FakeUpstream
    ledger: CaptureLedger
    http: httpx.AsyncClient

    async def manifest(self, rollout_id: str = "r1") -> RolloutManifest:
        """Return what the ledger knows of a rollout."""
        return await self.ledger.manifest(rollout_id)

    async def reasons(self, rollout_id: str = "r1") -> list[str]:
        """Return why calls of a rollout have no row."""
        failures: list[ManifestFailure] = (await self.manifest(rollout_id)).failures
        return [failure.reason for failure in failures]

    async def post(self, path: str, body: object, rollout_id: str = "r1") -> httpx.Response:
        """Make a captured call."""
        return await self.http.post(f"/ng-rollout/{rollout_id}/training-token-capture{path}", json=body)


@asynccontextmanager
async def staged_site(
    directory: Path,
    worker: ScriptedWorker | None = None,
    *,
    backend: WorkerBackend = "vllm_worker",
    ledger: CaptureLedger | None = None,
    observability: bool = False,
    compacting: bool = False,
    keep_alive_s: float = 15.0,
    ledger_timeout_s: float = 30.0,
) -> AsyncIterator[StagedSite]:
    """Serve a worker and its model server for the block.

    Args:
        directory: Gets the ledger and the captured calls.
        worker: What answers; None says hello.
        backend: How it is told of admissions.
        ledger: Keeps the rows; None takes files.
        observability: Capture every call as well.
        compacting: Serve it as ``vllm_model_with_compaction`` does.
        keep_alive_s: Longest silence of a stream.
        ledger_timeout_s: Longest that the ledger may take for one call.
    """
    worker = worker or ScriptedWorker()
    upstream = FakeUpstream(worker)
    kept = FailureKeepingLedger(
        ledger or FileCaptureLedger(directory / "ledger"), timeout_s=ledger_timeout_s, retry_interval_s=0.02
    )
    writer = CaptureWriter(directory / "captures", server_name="policy") if observability else None
    extensions = frozenset({"required_prefix_token_ids"} if compacting else ())
    options = AppOptions(bridge=BridgeOptions(keep_alive_s=keep_alive_s, extensions=extensions))
    external = ExternalStaging(kept, backend, CONTROL_TOKEN)
    async with _served(upstream) as behind, _engine(behind, chat_alone=compacting) as engine:
        if writer is not None:
            writer.start()
        app = build_app(engine, server_name="policy", capture=writer, options=options, external=external)
        try:
            async with _served(app) as url, httpx.AsyncClient(base_url=url, timeout=30.0) as http:
                yield StagedSite(url, worker, upstream, kept, http)
        finally:
            if writer is not None:
                writer.close()
            await kept.close()


@asynccontextmanager
async def _engine(url: str, *, chat_alone: bool) -> AsyncIterator[VllmEngine]:
    dialects = (CHAT,) if chat_alone else (RESPONSES, CHAT, MESSAGES)
    engine = VllmEngine(UpstreamEngine(f"{url}/v1", dialects=dialects), served_model="m", behaviour=VllmBehaviour())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.aclose()


@asynccontextmanager
async def _served(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an application on loopback for the block; gives its root URL."""
    server = AppServer(app)
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop(1.0)
