from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.errors import StorageExistsError
from gym_ray.storage.posix import PosixStore
from gym_ray.testing.lagging_store import LaggingStore


def test_the_newest_names_are_not_listed_but_are_there(tmp_path: Path) -> None:
    store = LaggingStore(PosixStore(tmp_path), lag=2)
    for name in ("p/c", "p/b", "q/a"):
        store.create(name, b"1")
    assert store.list() == ["p/c"]
    assert store.list("q/") == []
    assert store.exists("q/a")
    assert store.read("q/a") == b"1"
    with pytest.raises(StorageExistsError):
        store.create("p/b", b"2")
    store.create("p/d", b"1")
    assert store.list("p/") == ["p/b", "p/c"]
    store.lag = 0
    assert store.list() == ["p/b", "p/c", "p/d", "q/a"]
    store.delete("p/b")
    assert store.list("p/") == ["p/c", "p/d"]


def test_names_of_others_lag_too(tmp_path: Path) -> None:
    store = LaggingStore(PosixStore(tmp_path))
    PosixStore(tmp_path).create("a", b"")
    assert store.list() == []
    with PosixStore(tmp_path).stream("b") as value:
        value.publish()
    assert store.list() == ["a"]
