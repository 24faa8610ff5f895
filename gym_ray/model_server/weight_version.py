"""The route by which a trainer says which weights the engine serves from now on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import BaseModel, ConfigDict, StrictInt, StrictStr, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gym_ray.token_id_capture.call_capture import TokenCapture

__all__ = ["WEIGHT_VERSION_PATH", "weight_version_endpoint"]

WEIGHT_VERSION_PATH = "/ng-token-capture/weight-version"


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
