"""What is said about a cluster that cannot be joined, before anything of Ray runs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gym_ray.errors import ClusterError

pytestmark = pytest.mark.ray


def test_an_address_at_which_nothing_listens_is_named_at_once() -> None:
    from gym_ray.actors.cluster import connected

    with socket.create_server(("127.0.0.1", 0)) as closing:
        address = f"127.0.0.1:{closing.getsockname()[1]}"
    with (
        pytest.raises(ClusterError, match=f"cannot join Ray at '{address}': .*HEAD:6379"),
        connected("x", address=address),
    ):
        pass


@pytest.mark.parametrize("address", ["nonsense", "http://127.0.0.1:8265", "127.0.0.1:99999999"])
def test_what_is_no_address_is_named(address: str) -> None:
    from gym_ray.actors.cluster import connected

    with pytest.raises(ClusterError, match=f"cannot join Ray at '{address}'"), connected("x", address=address):
        pass


def test_a_missing_token_is_named_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gym_ray.actors.cluster import connected

    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        message = "without its token; set RAY_AUTH_MODE=token"
        with pytest.raises(ClusterError, match=message) as caught, connected("x", address=address):
            pass
    assert "\n" not in str(caught.value)
