"""The route by which a trainer says which weights the engine serves from now on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx
from pydantic import BaseModel, ConfigDict, StrictInt, StrictStr, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gym_ray.token_id_capture.call_capture import TokenCapture
from gym_ray.token_id_capture.external_staging import HostedWorker

__all__ = ["WEIGHT_VERSION_PATH", "forwarded_weight_version", "weight_version_endpoint"]

WEIGHT_VERSION_PATH = "/ng-token-capture/weight-version"
_FORWARD_TIMEOUT_S = 30.0


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: StrictInt | StrictStr | None


def weight_version_endpoint(
    tokens: TokenCapture, check_token: Callable[[Request], None]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of ``POST /ng-token-capture/weight-version``.

    It takes ``{"version": …}``, a text, a whole number, or null for unknown, and answers with it and the one before.
    Calls that begin after the answer carry it as their first version, and those that end after it as their last; a
    version that the engine itself reports wins over both. 422 for a body it cannot use.

    Args:
        tokens: Stamps the records.
        check_token: Raises what refuses a caller without the run's token.
    """

    async def endpoint(request: Request) -> Response:
        check_token(request)
        try:
            said = _Said.model_validate_json(await request.body())
        except ValidationError as error:
            message = f'a body of {{"version": text, whole number or null}} is needed: {error}'
            return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": 422}}, 422)
        before, tokens.weight_version = tokens.weight_version, said.version
        return JSONResponse({"version": said.version, "previous": before})

    return endpoint


def forwarded_weight_version(
    worker: HostedWorker, check_token: Callable[[Request], None]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler that hands the same request on to a hosted worker, which stamps the calls itself.

    The answer is the worker's; 502 when it gives none, and then nobody knows which version it stamps with.

    Args:
        worker: Where it is.
        check_token: Raises what refuses a caller without the run's token.
    """
    headers = {"authorization": f"Bearer {worker.api_key}", "content-type": "application/json"}

    async def endpoint(request: Request) -> Response:
        check_token(request)
        said = await request.body()
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=_FORWARD_TIMEOUT_S) as client:
                answer = await client.post(worker.url + WEIGHT_VERSION_PATH, content=said, headers=headers)
        except httpx.HTTPError as error:
            message = f"the inference worker did not answer; say it again: {type(error).__name__}: {error}"
            return JSONResponse({"error": {"message": message, "type": "server_error", "code": 502}}, 502)
        return Response(answer.content, answer.status_code, media_type="application/json")

    return endpoint
