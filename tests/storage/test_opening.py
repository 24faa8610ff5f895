from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gym_ray.errors import SettingsError
from gym_ray.storage.object_store import ObjectStore
from gym_ray.storage.opening import open_store
from gym_ray.storage.posix import PosixStore
from gym_ray.storage.s3_backend import S3Backend
from gym_ray.testing.storage_faults import RecordingCalls


def test_a_directory_is_opened_by_path_or_url(tmp_path: Path) -> None:
    for where in (tmp_path, str(tmp_path), f"file://{tmp_path}", f"FILE://localhost{tmp_path}"):
        store = open_store(where)
        assert isinstance(store, PosixStore)
        assert store.place == str(tmp_path)
    spaced = open_store(f"file://{tmp_path}/a%20b")
    assert spaced.place == f"{tmp_path}/a b"


def test_nothing_is_touched_before_it_is_used(tmp_path: Path) -> None:
    open_store(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_calls_and_mode_reach_the_directory(tmp_path: Path) -> None:
    calls = RecordingCalls()
    open_store(tmp_path / "x", calls=calls, mode=0o600).publish("y", b"1")
    assert ("sync", "x") in calls.log
    assert (tmp_path / "x" / "y").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("relative/path", "relative path"),
        ("file://host/path", "cannot name a host, 'host'"),
        ("sftp://host/path", "no store whose values are there whole or not at all"),
        ("s4://bucket", "no store whose values are there whole or not at all"),
    ],
)
def test_places_that_cannot_be(where: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as caught:
        open_store(where)
    assert str(caught.value).startswith(where)
    assert caught.value.remedy


def test_a_directory_takes_no_options(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a directory takes no options"):
        open_store(tmp_path, storage_options={"key": "x"})


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [("s3://b/p", "s3fs", "s3"), ("abfs://c/p", "adlfs", "azure"), ("gs://b/p", "gcsfs", "gcs")],
)
def test_a_missing_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str, extra: str
) -> None:
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, url.partition(":")[0], raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingsError, match=rf"gym-ray\[{extra}\]") as caught:
        open_store(url)
    assert module in str(caught.value)


def test_credentials_in_a_url_are_not_shown() -> None:
    store = open_store("s3://user:secret@bucket/prefix?token=secret#secret", storage_options={"secret": "sesame"})
    assert isinstance(store, ObjectStore)
    assert store.place == "s3://bucket/prefix"
    assert repr(store) == "ObjectStore('s3://bucket/prefix')"


def test_a_container_is_not_mistaken_for_a_user() -> None:
    assert open_store("abfs://container@account.dfs/x").place == "abfs://container@account.dfs/x"


def test_many_threads_find_connections_to_s3_unless_the_options_say_otherwise() -> None:
    for given, expected in (({}, 64), ({"read_timeout": 1}, 64), ({"max_pool_connections": 5}, 5)):
        store = open_store("s3://bucket/prefix", storage_options={"anon": True, "config_kwargs": given})
        assert isinstance(store, ObjectStore)
        assert isinstance(store.backend, S3Backend)
        assert store.backend.file_system.config_kwargs == {"max_pool_connections": expected} | given


def test_listings_are_never_kept() -> None:
    store = open_store("s3://bucket/prefix", storage_options={"anon": True})
    assert isinstance(store, ObjectStore)
    assert isinstance(store.backend, S3Backend)
    assert store.backend.file_system.dircache.use_listings_cache is False


def test_every_store_has_a_client_of_its_own_so_that_closing_one_closes_no_other() -> None:
    one, other = (ObjectStore("s3://bucket/prefix", {"anon": True}) for _ in range(2))
    assert isinstance(one.backend, S3Backend)
    assert isinstance(other.backend, S3Backend)
    assert one.backend.file_system is not other.backend.file_system
