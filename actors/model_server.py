"""Host a model server's app and, in the same process, its capture writer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray
from ray.exceptions import RayError
from starlette.types import ASGIApp

from gym_ray.actors.capture_writer import ActorChannel, local_directory
from gym_ray.actors.http_host import HttpHost
from gym_ray.actors.metrics import MetricsPublisher, StagingMetricsPublisher, TokenMetricsPublisher
from gym_ray.child_interpreter import ChildInterpreter
from gym_ray.model_call_capture.exchanges.redaction import Redactor
from gym_ray.model_call_capture.opening import open_capture_writer
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.model_server.app import build_app
from gym_ray.model_server.engine import Engine
from gym_ray.model_server.engines import app_options, build_engine, build_worker_client
from gym_ray.model_server.heavy_bodies import body_work
from gym_ray.settings import ModelOptions, RunSettings, own_secrets
from gym_ray.token_id_capture.call_capture import TokenCapture
from gym_ray.token_id_capture.config import build_external_staging, build_token_capture
from gym_ray.token_id_capture.external_staging import ExternalStaging, HostedWorker

__all__ = ["ModelServerHost"]

_log = logging.getLogger(__name__)
_ASK_S = 20.0


class ModelServerHost(HttpHost):
    """One replica of a model server."""

    def __init__(
        self,
        settings: RunSettings,
        server_name: str,
        host: str,
        port: int,
        run_token: str,
        control_token: str | None,
        digest_key: bytes,
        local_engine_url: str | None,
        worker_url: str | None,
        capture_writer: tuple[str, str] | None = None,
        weights: tuple[str, str] | None = None,
    ) -> None:
        self._settings, self._server_name = settings, server_name
        self._run_token, self._control_token = run_token, control_token
        self._digest_key, self._local_engine_url, self._worker_url = digest_key, local_engine_url, worker_url
        self._capture_writer = capture_writer  # name and namespace of the actor that writes captures for this server
        self._weights = weights  # those of the actor that knows which weights are served, where a loop trains
        self._engine: Engine | None = None
        self._writer: CaptureWriter | None = None
        self._tokens: TokenCapture | None = None
        self._external: ExternalStaging | None = None
        self._metrics: list[MetricsPublisher | TokenMetricsPublisher | StagingMetricsPublisher] = []
        self._child: ChildInterpreter[Any] = ChildInterpreter(body_work)
        super().__init__(server_name, host, port)

    async def _open(self) -> ASGIApp:
        engine = self._build_engine()
        self._engine = engine
        await engine.start()
        if self._settings.model_endpoint_timeout_s:  # 0 leaves the endpoint unchecked (D129)
            await engine.ready(self._settings.model_endpoint_timeout_s, on_wait=self._say_why)
        self._writer = await asyncio.to_thread(self._open_writer)
        self._tokens = await asyncio.to_thread(self._open_tokens)
        self._external = await asyncio.to_thread(self._open_external)
        await self._ask_for_weights()
        self._publish_metrics()
        return build_app(
            engine,
            server_name=self._server_name,
            capture=self._writer,
            run_token=self._run_token,
            options=app_options(self._settings.servers[self._server_name], engine),
            child=self._child,
            tokens=self._tokens,
            external=self._external,
        )

    def _build_engine(self) -> Engine:
        server = self._settings.servers[self._server_name]
        if self._worker_url is not None:
            return build_worker_client(server, self._worker_url, self._run_token)
        return build_engine(
            server,
            local_engine_url=self._local_engine_url,
            fail_unproven_prefix=self._settings.token_id_capture.on_unproven_prefix == "fail",
        )

    def _publish_metrics(self) -> None:
        if self._writer is not None:
            self._metrics.append(MetricsPublisher(self._writer.telemetry, self._server_name))
        if self._tokens is not None:
            self._metrics.append(TokenMetricsPublisher(self._tokens, self._server_name))
        if self._external is not None:
            self._metrics.append(StagingMetricsPublisher(self._external.counts, self._server_name))
        for publisher in self._metrics:
            publisher.start()

    def _say_why(self, reason: str) -> None:
        self._waits_for = f"{self._server_name}: {reason}"

    def _open_writer(self) -> CaptureWriter | None:
        location = self._settings.capture_location
        if location is None:
            return None
        channel = None
        if self._capture_writer is not None:
            channel = ActorChannel(*self._capture_writer, timeout_s=self._settings.capture_timeout_s)
        return open_capture_writer(
            location,
            server_name=self._server_name,
            url=f"http://{self._host}:{self._port}",
            run_token=self._run_token,
            capture_timeout_s=self._settings.capture_timeout_s,
            redactor=self._redactor(),
            local_dir=local_directory(),
            channel=channel,
        )

    def _open_tokens(self) -> TokenCapture | None:
        settings = self._settings
        return build_token_capture(
            settings.token_id_capture,
            capture_dir=settings.shared_dir,
            timeout_s=settings.capture_timeout_s,
            workers=self._replicas(),
        )

    def _open_external(self) -> ExternalStaging | None:
        settings = self._settings
        return build_external_staging(
            settings.token_id_capture,
            capture_dir=settings.shared_dir,
            control_token=self._control_token,
            timeout_s=settings.capture_timeout_s,
            workers=self._replicas(),
            hosted=None if self._worker_url is None else HostedWorker(self._worker_url, self._run_token),
        )

    async def _ask_for_weights(self) -> None:
        """Learn what the process before this one was told: else nobody would know the weights of calls."""
        if self._tokens is None or self._weights is None:
            return
        try:
            host: Any = await asyncio.to_thread(ray.get_actor, *self._weights)
            self._tokens.weight_version = await asyncio.wait_for(host.weight_version.remote(), _ASK_S)
        except ValueError:  # the loop has not begun yet, and says the version before its first step
            return
        except (RayError, TimeoutError) as error:  # it says the version again once it is back
            _log.warning("%s: nobody says which weights are served at the moment: %s", self._server_name, error)

    def _replicas(self) -> int:
        options = self._settings.servers[self._server_name].options
        replicas = options.replicas if isinstance(options, ModelOptions) else 1
        return replicas if isinstance(replicas, int) else 2  # one a node: nobody knows yet how many nodes there will be

    def _redactor(self) -> Redactor:
        chosen = self._settings.capture_redaction
        return Redactor(
            [*own_secrets(self._settings), self._run_token, *filter(None, [self._control_token])],
            keys=chosen.keys,
            patterns=chosen.patterns,
            digest_key=self._digest_key,
        )

    async def _release(self) -> None:
        if self._engine is not None:
            await self._engine.aclose()
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)
        await self._close_tokens()
        for publisher in self._metrics:
            await publisher.close()
        await asyncio.to_thread(self._child.close)

    async def _close_tokens(self) -> None:
        for part in (self._tokens, self._external):
            if part is None:
                continue
            try:
                await part.aclose()
            except Exception:  # noqa: BLE001 - boundary: a sink may raise anything, and the rest is still to be closed
                _log.exception("%s: its token capture did not end well", self._server_name)
