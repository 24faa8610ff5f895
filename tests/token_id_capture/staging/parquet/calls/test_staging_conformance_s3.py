"""The Parquet sink and source on the real S3 protocol, held to what any sink and source promise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from gym_ray.storage.object_store import ObjectStore
from gym_ray.testing.s3_server import S3Server, s3_server
from gym_ray.testing.staging_conformance import StagingSinkSuite, StagingSourceSuite
from gym_ray.token_id_capture.staging import StagingSink, StagingSource
from gym_ray.token_id_capture.staging.parquet import ParquetStagingSink, ParquetStagingSource

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


class OnS3:
    @pytest.fixture(autouse=True)
    def _store(self, s3: S3Server) -> Iterator[None]:
        self.store = ObjectStore(s3.new_url(), s3.options())
        yield
        self.store.close()

    def make(self) -> tuple[StagingSink, StagingSource]:
        place = self.store.place
        return ParquetStagingSink(place, store=self.store), ParquetStagingSource(place, store=self.store)


class TestSink(OnS3, StagingSinkSuite):
    unstorable: ClassVar[Mapping[str, Any]] = {"objects": np.array([object()])}

    def attachment_bytes(self, staging_key: str, name: str) -> bytes:
        return np.asarray(self.source.fetch_attachments(staging_key)[name].read()).tobytes()


class TestSource(OnS3, StagingSourceSuite):
    pass
