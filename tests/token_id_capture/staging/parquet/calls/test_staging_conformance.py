"""The Parquet sink and source, held to what any sink and source promise."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from gym_ray.testing.staging_conformance import StagingSinkSuite, StagingSourceSuite
from gym_ray.token_id_capture.staging import StagingSink, StagingSource
from gym_ray.token_id_capture.staging.parquet.calls.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.parquet.calls.staging_source import ParquetStagingSource

STORE_ID = "0011223344556677"


class OnDirectory:
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        store = {"format": "gym-ray-staging", "version": 1, "store_id": STORE_ID}
        (tmp_path / "store.json").write_text(json.dumps(store))

    def make(self) -> tuple[StagingSink, StagingSource]:
        return ParquetStagingSink(self.directory), ParquetStagingSource(self.directory)


class InMemory:
    """An object store without its latencies: every request is one of the real client library."""

    def make(self) -> tuple[StagingSink, StagingSource]:
        where = f"memory://{secrets.token_hex(6)}"
        return ParquetStagingSink(where), ParquetStagingSource(where)


class TestSink(OnDirectory, StagingSinkSuite):
    unstorable: ClassVar[Mapping[str, Any]] = {"objects": np.array([object()])}

    def attachment_bytes(self, staging_key: str, name: str) -> bytes:
        return np.asarray(self.source.fetch_attachments(staging_key)[name].read()).tobytes()


class TestSource(OnDirectory, StagingSourceSuite):
    missing_keys = (
        "no-such-rollout/no-such-call",
        f"gr1:{STORE_ID}:default:0123456789abcdef0123-0:0.0:deadbeef",
    )


class TestObjectSink(InMemory, StagingSinkSuite):
    unstorable: ClassVar[Mapping[str, Any]] = {"objects": np.array([object()])}

    def attachment_bytes(self, staging_key: str, name: str) -> bytes:
        return np.asarray(self.source.fetch_attachments(staging_key)[name].read()).tobytes()


class TestObjectSource(InMemory, StagingSourceSuite):
    pass
