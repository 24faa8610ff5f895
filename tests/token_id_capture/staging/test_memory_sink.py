"""Staging in memory keeps what a sink and a source promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gym_ray.errors import StagedCallMissingError
from gym_ray.testing.staged_chains import staged_call, staged_chain
from gym_ray.testing.staging_conformance import StagingSinkSuite, StagingSourceSuite
from gym_ray.token_id_capture.staging import MemoryStaging


class TestMemorySink(StagingSinkSuite):
    def make(self) -> tuple[Any, Any]:
        staging = MemoryStaging()
        return staging, staging


class TestMemorySource(StagingSourceSuite):
    def make(self) -> tuple[Any, Any]:
        staging = MemoryStaging()
        return staging, staging


def test_a_missing_key_is_named() -> None:
    with pytest.raises(StagedCallMissingError, match="r0/c9: not staged here"):
        MemoryStaging().fetch(["r0/c9"])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": b"x"}, {"a": bytearray(b"x")}, True),
        ({"a": b"x"}, {"a": memoryview(b"x")}, True),
        ({"a": b"x"}, {"a": b"y"}, False),
        ({"a": "x"}, {"a": b"x"}, False),
        ({"a": [np.arange(2), np.arange(3)]}, {"a": (np.arange(2), np.arange(3))}, True),
        ({"a": [np.arange(2)]}, {"a": [np.arange(2), np.arange(3)]}, False),
        ({"a": np.arange(2, dtype=np.int8)}, {"a": np.arange(2)}, False),
        ({"a": np.arange(4)}, {"a": np.arange(4).reshape(2, 2)}, False),
        ({}, None, True),
        ({"a": len}, {"a": len}, True),
        ({"a": object()}, {"a": object()}, False),
    ],
)
def test_attachments_are_the_same_by_content_or_by_identity(one: Any, other: Any, same: bool) -> None:
    staging = MemoryStaging()
    assert staging.stage(staged_call(), attachments=one).ok
    assert staging.stage(staged_call(), attachments=other).ok is same
    assert len(staging) == 1


def test_deleted_calls_are_gone_and_can_be_staged_anew() -> None:
    staging = MemoryStaging()
    keys = [staging.stage(record).staging_key or "" for record in staged_chain()]
    staging.delete([keys[0], "unknown"])
    with pytest.raises(KeyError):
        staging.fetch(keys)
    assert staging.stage(staged_call(weight_version=9)).ok
    assert len(staging) == 3
