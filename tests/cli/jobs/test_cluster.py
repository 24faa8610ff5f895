"""Which cluster a command about jobs talks to, and what is said about a token before anybody is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.cli.jobs.cluster import job_server, job_server_address
from gym_ray.errors import ClusterError


@pytest.mark.parametrize(
    ("given", "environ", "recorded", "address"),
    [
        ("http://head:8265", {"RAY_ADDRESS": "http://other:1"}, "http://record:1", "http://head:8265"),
        ("https://head/", {}, None, "https://head"),
        (None, {"RAY_ADDRESS": "http://other:1"}, "http://record:1", "http://record:1"),
        (None, {"RAY_API_SERVER_ADDRESS": "http://api:1", "RAY_ADDRESS": "http://other:1"}, None, "http://api:1"),
        (None, {"RAY_ADDRESS": "http://other:1"}, None, "http://other:1"),
        (None, {"RAY_ADDRESS": "auto"}, None, "http://127.0.0.1:8265"),
        (None, {"RAY_ADDRESS": ""}, None, "http://127.0.0.1:8265"),
        (None, {}, None, "http://127.0.0.1:8265"),
        ("http://[::1]:8265", {}, None, "http://[::1]:8265"),
    ],
)
def test_the_nearest_address_wins(
    given: str | None, environ: dict[str, str], recorded: str | None, address: str
) -> None:
    assert job_server_address(given, environ, recorded=recorded) == address


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("ray://head:10001", "is no HTTP address, but one of Ray itself"),
        ("head:6379", "is no HTTP address, but one of Ray itself"),
        ("10.0.0.1:8265", "is no HTTP address, but one of Ray itself"),
        ("http://", "is no HTTP address"),
        ("http://head:port", "not an address"),
        ("http://head:8265/api", "holds more than scheme, host and port"),
    ],
)
def test_a_wrong_address_is_refused_before_anybody_is_asked(address: str, problem: str) -> None:
    for given, environ, source in ((address, {}, "--address"), (None, {"RAY_ADDRESS": address}, "RAY_ADDRESS")):
        with pytest.raises(ClusterError, match=problem) as caught:
            job_server_address(given, environ)
        assert str(caught.value).startswith(f"{source}: ")
        assert "http://127.0.0.1:8265" in str(caught.value)


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(ClusterError, match="holds credentials; tokens travel in a file") as caught:
        job_server_address("http://user:hidden@head:8265", {})
    assert "hidden" not in str(caught.value)


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for path, problem in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory"), (empty, "is empty")):
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
        with pytest.raises(ClusterError, match=problem) as caught:
            job_server("http://127.0.0.1:9")
        assert str(caught.value).startswith(f"RAY_AUTH_TOKEN_PATH: {path}: ")
        assert str(caught.value).endswith("it must name a readable file with the cluster's token")
