"""Which cluster the commands about jobs talk to, and how its token gets there: by file, never by flag or message."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from gym_ray.errors import ClusterError

if TYPE_CHECKING:
    from gym_ray.actors.jobs import RayJobs

__all__ = ["Address", "job_server", "job_server_address"]

Address = Annotated[
    str | None,
    typer.Option("--address", help="HTTP address of the cluster's job server, such as http://HEAD:8265."),
]

_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_LOCAL = "http://127.0.0.1:8265"
_RIGHT = f"give the HTTP address of the job server, such as {_LOCAL}"
_TOKEN_RIGHT = "it must name a readable file with the cluster's token"  # noqa: S105 - a remedy, no token


def job_server_address(given: str | None, environ: Mapping[str, str], *, recorded: str | None = None) -> str:
    """Return the HTTP address of the job server: the given one, the job's own, the environment's, this machine's.

    Args:
        given: What the command line says.
        environ: ``RAY_API_SERVER_ADDRESS`` and ``RAY_ADDRESS`` are looked at, in this order.
        recorded: Where the job was submitted.

    Raises:
        ClusterError: It is an address of Ray itself, holds credentials, or is none.
    """
    places = [("--address", given), ("the job's record", recorded)]
    places += [(name, environ.get(name)) for name in _VARIABLES]
    for source, address in places:
        if address in ("auto", "local"):
            return _LOCAL
        if address:
            return _checked(source, address)
    return _LOCAL


def _checked(source: str, address: str) -> str:
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ClusterError(f"{source}: not an address: {error}; {_RIGHT}") from error
    if parts.username or parts.password:
        raise ClusterError(f"{source}: the address holds credentials; tokens travel in a file (RAY_AUTH_TOKEN_PATH)")
    if parts.scheme not in ("http", "https") or not host:
        raise ClusterError(f"{source}: {address!r} is no HTTP address, but one of Ray itself or none; {_RIGHT}")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ClusterError(f"{source}: {address!r} holds more than scheme, host and port; {_RIGHT}")
    return f"{parts.scheme}://{parts.netloc}"


def job_server(address: str) -> RayJobs:
    """Return the jobs of the cluster at an address that was checked.

    Raises:
        ClusterError: Ray is not installed, our token cannot be read, or the cluster does not answer as it should.
    """
    _check_token(os.environ)
    if "RAY_AUTH_MODE" not in os.environ and {"RAY_AUTH_TOKEN_PATH", "RAY_AUTH_TOKEN"} & set(os.environ):
        os.environ["RAY_AUTH_MODE"] = "token"  # whoever names a token means it to be sent
    os.environ["RAY_API_SERVER_ADDRESS"] = (
        address  # Ray's client would follow this and RAY_ADDRESS, whatever it is told
    )
    try:
        from gym_ray.actors.jobs import RayJobs
    except ImportError as error:
        raise ClusterError(f"Ray cannot be imported: {error}; install it with `pip install gym-ray`") from error
    return RayJobs(address)


def _check_token(environ: Mapping[str, str]) -> None:
    """Raise where the token's file is not as Ray's client needs it; the client ends with a page of text."""
    name = environ.get("RAY_AUTH_TOKEN_PATH")
    if name is None or environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_MODE", "token") != "token":
        return
    try:
        token = Path(name).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ClusterError(f"RAY_AUTH_TOKEN_PATH: {name}: cannot be read: {reason}; {_TOKEN_RIGHT}") from error
    if not token.strip():
        raise ClusterError(f"RAY_AUTH_TOKEN_PATH: {name}: is empty; {_TOKEN_RIGHT}")
