"""The routes by which a trainer reads the manifest of a rollout, and retires or deletes it (C220-C227).

They hold no token, and still tell a trainer what to train on; so they are there only with a secret, which is compared
before anything of a request is looked at.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gym_ray.correlation import check_rollout_id
from gym_ray.errors import CaptureError, RolloutIdError, RolloutRetiredError
from gym_ray.token_id_capture.staging import CaptureLedger, RolloutRemoval

__all__ = ["CONTROL_PREFIX", "MAX_IDS", "check_bearer", "control_routes"]

CONTROL_PREFIX: Final = "/training-token-capture/control"
"""What every path here begins with (C220)."""
MAX_IDS: Final = 4096
"""Rollouts that one request may retire or delete (C224)."""

_MAX_BODY_BYTES: Final = 4 * 1024**2
_ANY_METHOD: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_Handler = Callable[[Request], Awaitable[Response]]
_Remove = Callable[[list[str]], Awaitable[RolloutRemoval]]


class _RolloutIds(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rollout_ids: Annotated[list[StrictStr], Field(min_length=1, max_length=MAX_IDS)]


def check_bearer(bearer: str) -> bytes:
    """Return a secret as it is sent.

    Raises:
        ValueError: It is empty, or no header can carry it as it is, such as one with the line end of its file; the
            message does not show it.
    """
    if not bearer:
        raise ValueError("the control routes need a bearer token that is not empty")
    if not bearer.isprintable() or bearer != bearer.strip():
        raise ValueError("the bearer token of the control routes has a line end, a control character or a space around")
    return b"Bearer " + bearer.encode()


def control_routes(ledger: CaptureLedger, bearer: str) -> list[Route]:
    """Return the control routes of a model server.

    Args:
        ledger: Knows the rollouts; not closed here.
        bearer: The secret that a trainer must send.

    Raises:
        ValueError: There is no secret (C220), or no header can carry it.
    """
    authorisation, control = check_bearer(bearer), _Control(ledger)
    rollouts = f"{CONTROL_PREFIX}/rollouts"
    return [
        Route(path, _guarded(method, authorisation, handler), methods=_ANY_METHOD)
        for path, method, handler in (
            (f"{rollouts}/{{rollout_id}}/manifest", "GET", control.manifest),
            (f"{rollouts}/retire", "POST", control.retire),
            (f"{rollouts}/delete", "POST", control.delete),
        )
    ] + [Route(f"{CONTROL_PREFIX}/{{rest:path}}", _unknown, methods=_ANY_METHOD)]


def _guarded(method: str, authorisation: bytes, handler: _Handler) -> _Handler:
    """Let only this method and only this secret through."""

    async def endpoint(request: Request) -> Response:
        if request.method != method:
            return _refusal(405, "Method Not Allowed", {"allow": method})
        if not _is_authorised(request, authorisation):
            return _refusal(401, "missing or invalid control-plane bearer token", {"www-authenticate": "Bearer"})
        try:
            return await handler(request)
        except RolloutIdError as error:
            return _refusal(400, str(error))
        except RolloutRetiredError as error:
            return _refusal(410, str(error))
        except CaptureError as error:
            return _refusal(503, str(error))

    return endpoint


def _is_authorised(request: Request, authorisation: bytes) -> bool:
    """Compare bytes, because a header may be of any (C327)."""
    sent = [value for name, value in request.headers.raw if name == b"authorization"]
    given = sent[0] if len(sent) == 1 else b""
    return hmac.compare_digest(given, authorisation)


def _refusal(status: int, detail: object, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers)


async def _unknown(_request: Request) -> Response:
    return _refusal(404, "Not Found")


class _Control:
    """What an authorised trainer may ask."""

    def __init__(self, ledger: CaptureLedger) -> None:
        self._ledger = ledger

    async def manifest(self, request: Request) -> Response:
        """Answer with all that is known of a rollout; with nothing, if nothing is (C221)."""
        rollout_id = request.path_params["rollout_id"]
        _check_ids([rollout_id])
        manifest = await self._ledger.manifest(rollout_id)
        return Response(manifest.model_dump_json(), media_type="application/json")

    async def retire(self, request: Request) -> Response:
        """Close rollouts for good (C224, C230)."""
        return await _remove(request, self._ledger.retire)

    async def delete(self, request: Request) -> Response:
        """Remove all that is known of rollouts (C224, C232)."""
        return await _remove(request, self._ledger.delete)


async def _remove(request: Request, remove: _Remove) -> Response:
    body = await _limited_body(request)
    if body is None:
        return _refusal(413, f"the body is larger than {_MAX_BODY_BYTES} bytes")
    try:
        wanted = _RolloutIds.model_validate_json(body).rollout_ids
    except ValidationError as error:
        return _refusal(422, error.errors(include_url=False, include_context=False, include_input=False))
    _check_ids(wanted)
    removal = await remove(wanted)
    return Response(removal.model_dump_json(), media_type="application/json")


def _check_ids(rollout_ids: list[str]) -> None:
    """Check all before anything is changed.

    Raises:
        RolloutIdError: One is none; the message is the peer's.
    """
    for rollout_id in rollout_ids:
        try:
            check_rollout_id(rollout_id)
        except RolloutIdError as error:
            raise RolloutIdError(f"Invalid rollout id: {rollout_id!r}") from error


async def _limited_body(request: Request) -> bytes | None:
    """Return the body, None if it is too large."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _MAX_BODY_BYTES:
                return None
    except ClientDisconnect:
        return None  # nobody is there to read the answer
    return bytes(body)
