from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gym_ray.storage.posix import PosixStore
from gym_ray.token_id_capture.staging.parquet.segments.identity import open_identity, read_identity


class WithoutCreate(PosixStore):
    """A store where nothing can be created exclusively."""

    @property
    def exclusive(self) -> bool:
        return False

    def create(self, name: str, data: bytes) -> None:
        raise AssertionError("not to be used here")


def test_a_store_has_one_identity(tmp_path: Path) -> None:
    assert read_identity(PosixStore(tmp_path)) is None
    store_id = open_identity(PosixStore(tmp_path))
    assert open_identity(PosixStore(tmp_path)) == store_id == read_identity(PosixStore(tmp_path))
    assert json.loads((tmp_path / "store.json").read_bytes()) == {
        "format": "gym-ray-staging",
        "version": 1,
        "store_id": store_id,
    }


def test_writers_that_open_a_store_at_once_agree(tmp_path: Path) -> None:
    barrier = threading.Barrier(16)

    def open_one(_: int) -> str:
        barrier.wait()
        return open_identity(PosixStore(tmp_path))

    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(open_one, range(16)))) == 1


def test_two_stores_differ(tmp_path: Path) -> None:
    assert open_identity(PosixStore(tmp_path / "a")) != open_identity(PosixStore(tmp_path / "b"))


def test_where_nothing_can_be_created_exclusively_the_place_decides(tmp_path: Path) -> None:
    store_id = open_identity(WithoutCreate(tmp_path / "a"))
    (tmp_path / "a" / "store.json").unlink()
    assert open_identity(WithoutCreate(tmp_path / "a")) == store_id
    assert open_identity(WithoutCreate(tmp_path / "b")) != store_id


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "is not the JSON"),
        (b"[]", "does not say that this is a staging store"),
        (b'{"format": "other"}', "does not say that this is a staging store"),
        (b'{"format": "gym-ray-staging", "version": 2, "store_id": "0011223344556677"}', "says version 2"),
        (b'{"format": "gym-ray-staging", "version": 1, "store_id": "x"}', "no store_id of 16 hex digits"),
        (b'{"format": "gym-ray-staging", "version": 1}', "no store_id of 16 hex digits"),
    ],
)
def test_another_file_of_that_name_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "store.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"store.json .*{problem}"):
        open_identity(PosixStore(tmp_path))
    assert (tmp_path / "store.json").read_bytes() == content
