"""The HTTP service of an inference worker: the routes of a model server in front of an engine that stages.

Nothing of a call is recorded here but its tokens: the model server in front records exchanges.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gym_ray.errors import StorageError
from gym_ray.inference_worker.staging_engine import StagingEngine
from gym_ray.inference_worker.weights import WeightVersion
from gym_ray.model_server.app import AppOptions, build_app
from gym_ray.model_server.weight_version import WEIGHT_VERSION_PATH

__all__ = ["build_worker_app"]


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: int = Field(ge=0)


def build_worker_app(
    engine: StagingEngine,
    weights: WeightVersion,
    *,
    name: str,
    api_key: str | None = None,
    options: AppOptions | None = None,
) -> Starlette:
    """Build the application of one worker; starting and stopping its engine is the host's work.

    Args:
        engine: What answers, started.
        weights: Told by ``POST /ng-token-capture/weight-version {"version": int}`` which weights serve from now on; the
            answer comes when that is durable.
        name: Name of the worker, for messages.
        api_key: What callers must send as their API key; None accepts everybody.
        options: How the server behaves.
    """
    app = build_app(engine, server_name=name, capture=None, run_token=api_key, options=options)
    app.router.routes.append(Route(WEIGHT_VERSION_PATH, _weight_version(weights, api_key), methods=["POST"]))
    return app


def _weight_version(weights: WeightVersion, api_key: str | None) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        sent = request.headers.get("authorization", "").encode()
        if api_key is not None and not hmac.compare_digest(sent, f"Bearer {api_key}".encode()):
            raise HTTPException(401, "this worker needs its API key (Authorization: Bearer)")
        try:
            said = _Said.model_validate_json(await request.body())
        except ValidationError as error:
            message = f'a body of {{"version": whole number of 0 or more}} is needed: {error}'
            return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": 422}}, 422)
        try:
            before = await weights.say(said.version)
        except StorageError as error:
            message = f"the version could not be kept, and calls are stamped with {weights()} as before: {error}"
            return JSONResponse({"error": {"message": message, "type": "server_error", "code": 503}}, 503)
        return JSONResponse({"version": said.version, "previous": before})

    return endpoint
