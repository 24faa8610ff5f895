"""What an object store that cannot be used at all says, in plain words: no bucket, nobody there, not let in."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["plain_problem"]

_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})
_NOT_LET_IN: Final = frozenset(
    {
        "AccessDenied",
        "AuthenticationFailed",
        "AuthorizationFailure",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "NoCredentialsError",
        "PartialCredentialsError",
        "SignatureDoesNotMatch",
    }
)
_NOBODY_THERE: Final = frozenset(
    {
        "ClientConnectorDNSError",
        "ClientConnectorError",
        "ConnectTimeoutError",
        "ConnectionRefusedError",
        "EndpointConnectionError",
        "ServiceRequestError",
        "gaierror",
    }
)
_PLAIN: Final = (
    (_NO_BUCKET, "its bucket or container does not exist; create it, or correct the URL"),
    (_NOT_LET_IN, "access is refused; check the credentials in storage_options or the environment, and what they may"),
    (_NOBODY_THERE, "nothing answers at its endpoint; check the address in storage_options, and the network"),
)


def plain_problem(error: BaseException) -> str:
    """Return why no request to this store can work and what to do, "" when the error is about one request.

    Client libraries are told by the names of their errors and the codes in them: not every one is installed.
    """
    found: set[str] = set()
    led: BaseException | None = error
    while led is not None:
        found |= {type(led).__name__, _code(led)}
        led = led.__cause__ or led.__context__
    return next((plain for names, plain in _PLAIN if names & found), "")


def _code(error: BaseException) -> str:
    response: Any = getattr(error, "response", None)
    inside = response.get("Error") if isinstance(response, dict) else None
    code = inside.get("Code") if isinstance(inside, dict) else getattr(error, "error_code", "")
    return str(getattr(code, "value", code))
