"""The head of a run: what it tells a collection of another terminal, and who may read the run's token (D129, D130)."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from gym_ray.cli.head import HeadWatch, build_head_app, publish_token, read_head, read_token
from gym_ray.errors import RunNotFoundError, StorageError
from gym_ray.server_directory import Endpoint, ServerDirectory
from gym_ray.testing.serving import served

YAML = "policy_model: {}\n"
DIRECTORY = ServerDirectory({"policy_model": [Endpoint("n1", "http://127.0.0.1:10001")]}, {})
CAPTURE = {"observability_enabled": True, "model_call_capture_dir": "/captures"}


def place(url: str) -> tuple[str, int]:
    found = httpx.URL(url)
    assert found.port is not None
    return found.host, found.port


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def test_a_collection_learns_settings_servers_and_captures() -> None:
    with served(build_head_app(YAML, DIRECTORY, CAPTURE)) as url:
        assert read_head(*place(url)) == (YAML, DIRECTORY, CAPTURE)
        assert httpx.get(f"{url}/").status_code == httpx.get(f"{url}/healthz").status_code == 200
        assert httpx.get(f"{url}/global_config_dict_yaml").json() == YAML, "YAML as one JSON string"
        assert not HeadWatch(*place(url)).gone()


def test_whoever_is_no_head_is_named() -> None:
    port = closed_port()
    with pytest.raises(RunNotFoundError, match=rf"no servers at http://127\.0\.0\.1:{port}: .*start them with"):
        read_head("127.0.0.1", port)
    other = Starlette(routes=[Route("/global_config_dict_yaml", lambda _: JSONResponse(YAML))])
    with served(other) as url, pytest.raises(RunNotFoundError, match="answers, but not as a gym-ray head"):
        read_head(*place(url))


def test_the_token_is_its_owners_while_the_run_lives(tmp_path: Path) -> None:
    with publish_token(tmp_path, "127.0.0.1", 11000, "token-of-the-run"):
        (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
        assert file.stat().st_mode & 0o777 == 0o600
        assert read_token(tmp_path, "127.0.0.1", 11000) == "token-of-the-run"
    with pytest.raises(RunNotFoundError, match="collect as the user, and on the machine") as caught:
        read_token(tmp_path, "127.0.0.1", 11000)
    assert "token-of-the-run" not in str(caught.value)
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    with pytest.raises(StorageError, match="cannot be kept"), publish_token(blocked, "127.0.0.1", 1, "token"):
        pass
