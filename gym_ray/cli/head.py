"""The head of a run of servers: where another terminal learns what runs, and where (D129, D130)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gym_ray.errors import RunNotFoundError, StorageError
from gym_ray.server_directory import ServerDirectory

_LOOK_S = 2.0
_LOOKS = 3

__all__ = ["HeadWatch", "build_head_app", "publish_token", "read_head", "read_token"]


@contextmanager
def publish_token(directory: Path, host: str, port: int, run_token: str) -> Iterator[None]:
    """Leave the run's token for the same user's other terminals, in a file that only the user can read.

    The head itself never serves it: whoever may connect to a port is not yet whoever may use the models.

    Raises:
        StorageError: The file cannot be written.
    """
    path = _token_file(directory, host, port)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(run_token)
    except OSError as error:
        raise StorageError(f"{path}: the run's token cannot be kept: {error}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def read_token(directory: Path, host: str, port: int) -> str:
    """Return the token of the run behind a head.

    Raises:
        RunNotFoundError: There is none: the servers were started by another user or on another machine.
    """
    path = _token_file(directory, host, port)
    try:
        return path.read_text()
    except OSError as error:
        raise RunNotFoundError(
            f"{path}: the token of the servers at {host}:{port} cannot be read: {error.strerror}; "
            "collect as the user, and on the machine, that runs `gym-ray env start`"
        ) from error


class HeadWatch:
    """Notices that the servers behind a head were stopped, so that a collection does not go on without them."""

    def __init__(self, host: str, port: int) -> None:
        self.place = f"{host}:{port}"
        self._next_look = 0.0
        self._missed = 0

    def gone(self) -> bool:
        """Return whether nothing has listened there for several looks; looks at most every few seconds."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_S
        try:
            httpx.get(f"http://{self.place}/", timeout=_LOOK_S, trust_env=False)
        except httpx.ConnectError:
            self._missed += 1
        except httpx.HTTPError:
            pass  # it listens; a slow head is not a stopped one
        else:
            self._missed = 0
        return self._missed >= _LOOKS


def _token_file(directory: Path, host: str, port: int) -> Path:
    return directory / "heads" / f"{host}-{port}.token"


def build_head_app(config_yaml: str, directory: ServerDirectory, capture: Mapping[str, Any]) -> Starlette:
    """Build the head's app; it is started once every server answers.

    Args:
        config_yaml: The run's settings as YAML, secrets left out.
        directory: Where the servers are.
        capture: ``observability_enabled`` and ``model_call_capture_dir`` as the servers use them.
    """

    async def alive(_: Request) -> Response:
        return PlainTextResponse("gym-ray head\n")

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def config(_: Request) -> Response:
        return JSONResponse(config_yaml)

    async def servers(_: Request) -> Response:
        return JSONResponse({"servers": directory.to_json(), "capture": dict(capture)})

    return Starlette(
        routes=[
            Route("/", alive),
            Route("/healthz", healthz),
            Route("/global_config_dict_yaml", config),
            Route("/servers", servers),
        ]
    )


def read_head(host: str, port: int, timeout_s: float = 10.0) -> tuple[str, ServerDirectory, dict[str, Any]]:
    """Ask a head for its settings (YAML), its servers and its capture settings.

    Raises:
        RunNotFoundError: Nothing answers there, or what answers is not a head.
    """
    root = f"http://{host}:{port}"
    try:
        with httpx.Client(timeout=timeout_s, trust_env=False) as client:
            config = client.get(f"{root}/global_config_dict_yaml").raise_for_status().json()
            servers = client.get(f"{root}/servers").raise_for_status().json()
        return str(config), ServerDirectory.from_json(servers["servers"]), dict(servers["capture"])
    except httpx.ConnectError as error:
        raise RunNotFoundError(
            f"no servers at {root}: {error}; start them with `gym-ray env start`, or leave --no-serve away"
        ) from error
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise RunNotFoundError(f"{root} answers, but not as a gym-ray head: {error!r}") from error
