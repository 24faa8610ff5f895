"""What is said about a cluster that cannot be joined, before anything of Ray runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gym_ray.errors import ClusterError

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[2]


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


JOIN = """
import sys
from gym_ray.actors.cluster import connected
from gym_ray.errors import ClusterError
try:
    with connected("x", address=sys.argv[1]):
        pass
except ClusterError as error:
    print(error)
"""


def test_a_missing_token_is_named_and_what_to_do(tmp_path: Path) -> None:
    # In a process of its own: Ray reads its tokens once.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "none"), "HOME": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        command = [sys.executable, "-c", JOIN, address]
        said = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert "without its token; set RAY_AUTH_MODE=token" in said.stdout, said.stderr
    assert said.stdout.count("\n") == 1
