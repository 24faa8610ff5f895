"""Every kind of store keeps the one contract."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

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


class TestS3(SegmentStoreSuite):
    @pytest.fixture
    def store(self, s3: S3Server) -> Iterator[SegmentStore]:
        store = open_store(s3.new_url(), storage_options=s3.options())
        yield store
        store.close()


AZURITE = azurite()

if AZURITE:

    @pytest.fixture(scope="module")
    def azure() -> Iterator[AzureServer]:
        with azure_server(AZURITE) as server:
            yield server

    class TestAzure(SegmentStoreSuite):
        @pytest.fixture
        def store(self, azure: AzureServer) -> Iterator[SegmentStore]:
            store = open_store(azure.new_url(), storage_options=azure.options())
            yield store
            store.close()
