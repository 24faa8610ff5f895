"""Staging in memory keeps what a sink and a source promise."""

from __future__ import annotations

import contextlib
import copy
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gym_ray.errors import StagedCallMissingError
from gym_ray.testing.staged_chains import staged_call, staged_chain
from gym_ray.testing.staged_rollout import StagedRollout
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
        ({"a": array("f", [1.5])}, {"a": array("f", [1.5])}, True),
        ({"a": array("f", [0.0])}, {"a": array("i", [0])}, False),
        ({"a": {"b": np.arange(2)}}, {"a": {"b": np.arange(2)}}, True),
        ({"a": {"b": np.arange(2)}}, {"a": {"b": np.arange(3)}}, False),
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


@pytest.mark.parametrize(
    ("given", "change"),
    [
        (np.arange(2), lambda value: value.fill(9)),
        (bytearray(b"ab"), lambda value: value.clear()),
        (array("f", [1.5]), lambda value: value.append(2.5)),
        ([[np.arange(2)]], lambda value: value[0].clear()),
        ({"b": [np.arange(2)]}, lambda value: value["b"][0].fill(9)),
    ],
)
def test_what_is_kept_does_not_change_with_what_was_given(given: Any, change: Callable[[Any], None]) -> None:
    staging, before = MemoryStaging(), copy.deepcopy(given)
    key = staging.stage(staged_call(), attachments={"a": given}).staging_key or ""
    change(given)
    assert staging.stage(staged_call(), attachments={"a": before}).ok
    assert not staging.stage(staged_call(), attachments={"a": given}).ok
    with contextlib.suppress(AttributeError):  # bytes cannot be changed
        change(staging.fetch_attachments(key)["a"])
    assert staging.stage(staged_call(), attachments={"a": before}).ok


def test_extras_that_were_fetched_are_the_readers_own() -> None:
    staging, extras = MemoryStaging(), {"a": [1]}
    record = StagedRollout().add("c1", [10, 11], [12], extras=extras)
    key = staging.stage(record).staging_key or ""
    extras["a"].append(2)
    (found,) = staging.fetch_extras([key])
    assert found == {"a": [1]}
    found["a"].append(3)
    assert staging.fetch_extras([key]) == [{"a": [1]}]
