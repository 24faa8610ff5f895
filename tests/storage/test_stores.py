"""Every kind of store keeps the one contract."""

from __future__ import annotations

import gc
import secrets
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from gym_ray.storage.opening import open_store
from gym_ray.storage.store import SegmentStore
from gym_ray.testing.azure_server import AzureServer, azure_server, azurite
from gym_ray.testing.s3_server import S3Server, s3_server
from gym_ray.testing.store_conformance import SegmentStoreSuite


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


class TestPosix(SegmentStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> SegmentStore:
        return open_store(tmp_path / "not yet there")


class TestMemory(SegmentStoreSuite):
    @pytest.fixture
    def store(self) -> SegmentStore:
        return open_store(f"memory://{secrets.token_hex(8)}/prefix")


def emptied(store: SegmentStore) -> SegmentStore:
    """Make a place new again: another client takes longer to make than a test."""
    for name in store.list():
        store.delete(name)
    return store


@pytest.fixture(scope="module")
def s3_place(s3: S3Server) -> Iterator[SegmentStore]:
    store = open_store(s3.new_url(), storage_options=s3.options())
    yield store
    store.close()


class TestS3(SegmentStoreSuite):
    @pytest.fixture
    def store(self, s3_place: SegmentStore) -> SegmentStore:
        return emptied(s3_place)


class GoogleFileSystem(MemoryFileSystem):
    """What gcsfs does with the arguments that it is given, on a table."""

    protocol = ("gs", "gcs")
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    marks: ClassVar[dict[str, dict[str, str]]] = {}
    lock = threading.Lock()

    def pipe_file(self, path: str, value: bytes, *, metadata: dict[str, str], chunksize: int, mode: str) -> None:
        with self.lock:
            super().pipe_file(path, value, mode=mode)
            self.marks[self._strip_protocol(path)] = metadata

    def put_file(self, lpath: str, rpath: str, *, metadata: dict[str, str], chunksize: int, mode: str) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes(), metadata=metadata, chunksize=chunksize, mode=mode)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return {**super().info(path, **kwargs), "metadata": self.marks.get(self._strip_protocol(path))}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        self.info(path)
        if self.isdir(path):
            raise FileNotFoundError(path)
        return self.store[self._strip_protocol(path)].getvalue()[start:end]


class TestGoogle(SegmentStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SegmentStore]:
        monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "gs", GoogleFileSystem)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        yield open_store(f"gs://{secrets.token_hex(8)}/prefix")
        gc.collect()
        assert list(tmp_path.iterdir()) == []


AZURITE = azurite()

if AZURITE:

    @pytest.fixture(scope="module")
    def azure() -> Iterator[AzureServer]:
        with azure_server(AZURITE) as server:
            yield server

    @pytest.fixture(scope="module")
    def azure_place(azure: AzureServer) -> Iterator[SegmentStore]:
        store = open_store(azure.new_url(), storage_options=azure.options())
        yield store
        store.close()

    class TestAzure(SegmentStoreSuite):
        @pytest.fixture
        def store(self, azure_place: SegmentStore) -> SegmentStore:
            return emptied(azure_place)
