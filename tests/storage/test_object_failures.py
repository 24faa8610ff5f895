from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gym_ray.errors import StorageError, StorageMissingError
from gym_ray.storage.object_store import ObjectStore
from gym_ray.storage.objects.object_failures import plain_problem
from gym_ray.testing.s3_server import S3Server, s3_server

NO_RETRIES = {"retries": {"max_attempts": 0}, "connect_timeout": 2}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.read("a"),
        lambda store: store.read_tail("a", 5),
        lambda store: store.list(),
        lambda store: store.exclusive,
        lambda store: store.create("a", b"1"),
        lambda store: store.publish("a", b"1"),
    ],
)
def test_a_bucket_that_is_not_there_is_no_missing_value(s3: S3Server, use: Callable[[ObjectStore], Any]) -> None:
    store = ObjectStore("s3://nobucket/run", s3.options())
    with pytest.raises(
        StorageError, match=r"^cannot use s3://nobucket/run: its bucket or container does not"
    ) as caught:
        use(store)
    assert not isinstance(caught.value, StorageMissingError)
    store.close()


def test_a_value_that_is_not_there_is_missing_as_ever(s3: S3Server) -> None:
    store = ObjectStore(s3.new_url(), s3.options())
    with pytest.raises(StorageMissingError, match=r"cannot read .*/a: it does not exist"):
        store.read("a")
    store.close()


def test_an_endpoint_where_nobody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    with socket.socket() as taken:  # bound and not listening: whoever connects is refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        store = ObjectStore("s3://b/run", {"key": "k", "secret": "s", "endpoint_url": url, "config_kwargs": NO_RETRIES})
        with pytest.raises(StorageError, match=r"^cannot use s3://b/run: nothing answers at its endpoint"):
            store.read("a")
        store.close()


def _raised(code: str) -> Exception:
    error = PermissionError("no")
    inner = ValueError("answer")
    inner.response = {"Error": {"Code": code}}  # type: ignore[attr-defined]
    error.__cause__ = inner
    return error


def test_what_is_about_one_request_is_not_said_of_the_store() -> None:
    assert "access is refused" in plain_problem(_raised("InvalidAccessKeyId"))
    for code in ("SlowDown", "InternalError", "NoSuchKey", "PreconditionFailed"):
        assert plain_problem(_raised(code)) == ""
    of_azure = FileNotFoundError("no")
    of_azure.error_code = "ContainerNotFound"  # type: ignore[attr-defined]
    assert "its bucket or container does not exist" in plain_problem(of_azure)
    of_azure.error_code = "BlobNotFound"  # type: ignore[attr-defined]
    assert plain_problem(of_azure) == ""
    odd = ValueError("x")
    odd.response = {"Error": "none"}  # type: ignore[attr-defined]
    assert plain_problem(odd) == ""
