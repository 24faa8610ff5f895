from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import SettingsError
from gym_ray.storage.object_store import ObjectStore
from gym_ray.storage.objects.s3_backend import S3Backend
from gym_ray.storage.opening import open_store
from gym_ray.storage.posix import PosixStore
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


@pytest.mark.parametrize("options", ["x", ["anon"], 3])
def test_options_are_a_map(tmp_path: Path, options: Any) -> None:
    for where in ("s3://user:secret@bucket/p", tmp_path):
        with pytest.raises(SettingsError, match=r"storage_options: they are \w+, not a map; give a map") as caught:
            open_store(where, storage_options=options)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        (
            "s3://b/p",
            {"endpoint": "http://hush"},
            "s3://b/p: storage_options.endpoint: s3:// has no such option; did you mean endpoint_url?",
        ),
        (
            "s3://b/p",
            {"wholly": "hush"},
            "s3://b/p: storage_options.wholly: s3:// has no such option; there are anon, ",
        ),
        (
            "s3://b/p",
            {"client_kwargs": {"region": "hush"}},
            "s3://b/p: storage_options.client_kwargs.region: botocore has no such option; did you mean region_name?",
        ),
        (
            "s3://b/p",
            {"config_kwargs": {"read_timeouts": "hush"}},
            "s3://b/p: storage_options.config_kwargs.read_timeouts: botocore has no such option; "
            "did you mean read_timeout?",
        ),
        ("s3a://b/p", {"client_kwargs": "hush"}, "s3a://b/p: storage_options.client_kwargs: it is str, not a map; "),
        (
            "abfs://c/p",
            {"acount_name": "hush"},
            "abfs://c/p: storage_options.acount_name: abfs:// has no such option; did you mean account_name?",
        ),
    ],
)
def test_an_option_that_no_client_knows_is_named(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_store(url, storage_options=options)
    assert str(caught.value).startswith(message)
    assert "hush" not in str(caught.value)


def test_options_that_clients_know_are_taken() -> None:
    many = {"key": "k", "secret": "s", "endpoint_url": "http://x", "use_ssl": False, "profile": "p", "batch_size": 3}
    nested = {"client_kwargs": {"region_name": "x", "verify": False}, "config_kwargs": {"s3": {}, "retries": {}}}
    open_store("s3://b/p", storage_options={**many, **nested, "max_paths": 3})
    open_store("abfs://c/p", storage_options={"account_name": "a", "exclude_environment_credential": True})
    open_store("memory://x", storage_options={"secret_key": "x"})


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for where in (file, f"file://{file}"):
        with pytest.raises(SettingsError, match="is a file, not a directory; name a directory"):
            open_store(where)
    with pytest.raises(SettingsError, match=rf"{file} is a file, not a directory"):
        open_store(file / "below" / "it")
    with pytest.raises(SettingsError, match="is something else, not a directory"):
        open_store("/dev/null")
    (tmp_path / "link").symlink_to(tmp_path)
    assert open_store(tmp_path / "link" / "new").place == f"{tmp_path}/link/new"


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
