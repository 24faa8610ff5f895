"""The suites for staging backends find each promise that a backend breaks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from gym_ray.testing.staging_conformance import StagingSinkSuite, StagingSourceSuite
from gym_ray.token_id_capture.staging import (
    Column,
    MemoryStaging,
    StagedCallBaseSnapshot,
    StagedCallRecord,
    StageResult,
)


class SaysYes(MemoryStaging):
    """Answers before anything is kept."""

    def stage(self, record: StagedCallRecord, *, attachments: Any = None) -> StageResult:
        return StageResult(ok=True, staging_key=record.staging_key)


class Overwrites(MemoryStaging):
    def stage(self, record: StagedCallRecord, *, attachments: Any = None) -> StageResult:
        self.delete([record.staging_key])
        return super().stage(record, attachments=attachments)


class RefusesAgain(MemoryStaging):
    def stage(self, record: StagedCallRecord, *, attachments: Any = None) -> StageResult:
        if len(self) and record.staging_key in self._calls:
            return StageResult(ok=False, error="exists")
        return super().stage(record, attachments=attachments)


class DropsMedia(MemoryStaging):
    def stage(self, record: StagedCallRecord, *, attachments: Any = None) -> StageResult:
        return super().stage(record)


class SharesMedia(MemoryStaging):
    """Keeps what its caller may still change."""

    def stage(self, record: StagedCallRecord, *, attachments: Any = None) -> StageResult:
        result = super().stage(record, attachments=attachments)
        self._calls[record.staging_key] = (record, attachments)
        return result


class RoundsIds(MemoryStaging):
    def stage(self, record: StagedCallRecord, *, attachments: Any = None) -> StageResult:
        ids = record.token_ids_delta.array.astype(np.uint32)
        return super().stage(record.model_copy(update={"token_ids_delta": Column(ids)}), attachments=attachments)

    def fetch(self, staging_keys: Sequence[str]) -> list[StagedCallBaseSnapshot]:
        return [record for record, _ in self._found(staging_keys)]


class OneKeyForAll(MemoryStaging):
    def stage(self, record: StagedCallRecord, *, attachments: Any = None) -> StageResult:
        super().stage(record, attachments=attachments)
        return StageResult(ok=True, staging_key=record.rollout_id)


class WantsNoEmptyMedia(MemoryStaging):
    def stage(self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None) -> StageResult:
        if attachments is not None and not attachments:
            return StageResult(ok=False, error="no attachments")
        return super().stage(record, attachments=attachments)


class SkipsMissing(MemoryStaging):
    def _found(self, keys: Sequence[str]) -> Any:
        return super()._found([key for key in keys if key in self._calls])


class AllowsTwice(MemoryStaging):
    def _found(self, keys: Sequence[str]) -> Any:
        return [super(AllowsTwice, self)._found([key])[0] for key in keys]


class OwnOrder(MemoryStaging):
    def _found(self, keys: Sequence[str]) -> Any:
        found = {key: super(OwnOrder, self)._found([key])[0] for key in sorted(keys)}
        return list(found.values()) if len(found) == len(keys) else super()._found(keys)


class WholeRecords(MemoryStaging):
    def fetch(self, staging_keys: Sequence[str]) -> list[Any]:
        return [record for record, _ in self._found(staging_keys)]


class ForgetsExtras(MemoryStaging):
    def fetch_extras(self, staging_keys: Sequence[str]) -> list[dict[str, Any] | None]:
        return [extras or None for extras in super().fetch_extras(staging_keys)]


class WritablePrefix(MemoryStaging):
    def fetch_prefix_token_ids(self, staging_keys: Sequence[str]) -> Any:
        return super().fetch_prefix_token_ids(staging_keys).copy()


def broken(suite: type[Any], backend: type[MemoryStaging]) -> set[str]:
    """Return the tests of a suite that fail over a backend."""

    class Suite(suite):  # type: ignore[misc]
        unstorable = None

        def make(self) -> tuple[Any, Any]:
            staging = backend()
            return staging, staging

    failed = set()
    for name, _ in inspect.getmembers(Suite, inspect.isfunction):
        if not name.startswith("test_"):
            continue
        one = Suite()
        try:
            getattr(one, name)()
        except Exception:  # noqa: BLE001 - a broken backend may raise whatever it likes
            failed.add(name.removeprefix("test_"))
        finally:
            one.teardown_method()
    return failed


@pytest.mark.parametrize(
    ("backend", "promise"),
    [
        (SaysYes, "a_staged_call_can_be_read_at_once"),
        (Overwrites, "another_call_under_the_same_ids_is_refused_and_not_written"),
        (RefusesAgain, "the_same_call_again_changes_nothing"),
        (RefusesAgain, "threads_that_stage_one_call_get_one_key"),
        (DropsMedia, "attachments_are_kept_with_their_call_or_refused"),
        (DropsMedia, "attachments_count_for_what_is_the_same_call"),
        (SharesMedia, "attachments_are_kept_with_their_call_or_refused"),
        (RoundsIds, "values_at_the_edge_of_their_types_come_back"),
        (OneKeyForAll, "a_key_leads_to_its_own_call"),
        (WantsNoEmptyMedia, "no_attachments_at_all_are_staged_as_well"),
    ],
)
def test_a_sink_that_breaks_a_promise_is_found(backend: type[MemoryStaging], promise: str) -> None:
    assert promise in broken(StagingSinkSuite, backend)


@pytest.mark.parametrize(
    ("backend", "promise"),
    [
        (SkipsMissing, "a_missing_key_raises_and_is_never_skipped"),
        (AllowsTwice, "a_key_that_is_asked_for_twice_raises"),
        (OwnOrder, "calls_come_in_the_order_asked"),
        (WholeRecords, "snapshots_hold_columns_and_no_extras"),
        (ForgetsExtras, "extras_stand_behind_the_same_key"),
        (WritablePrefix, "a_prefix_is_the_deltas_of_its_chain"),
    ],
)
def test_a_source_that_breaks_a_promise_is_found(backend: type[MemoryStaging], promise: str) -> None:
    assert promise in broken(StagingSourceSuite, backend)


class Text:
    """A sink for text alone."""

    def __init__(self) -> None:
        self.memory = MemoryStaging()

    def stage(self, record: StagedCallRecord) -> StageResult:
        return self.memory.stage(record)


class TestTextSink(StagingSinkSuite):
    takes_attachments = False

    def make(self) -> tuple[Any, Any]:
        sink = Text()
        return sink, sink.memory


class Choosy(MemoryStaging):
    def stage(self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None) -> StageResult:
        if any(type(value) is object for value in (attachments or {}).values()):
            return StageResult(ok=False, error="an object has no bytes")
        return super().stage(record, attachments=attachments)


class TestSinkThatRefusesObjects(StagingSinkSuite):
    unstorable: ClassVar[Mapping[str, Any] | None] = {"odd": object()}

    def make(self) -> tuple[Any, Any]:
        staging = Choosy()
        return staging, staging


def test_a_sink_that_takes_everything_is_found_where_it_should_refuse() -> None:
    class Suite(TestSinkThatRefusesObjects):
        def make(self) -> tuple[Any, Any]:
            staging = MemoryStaging()
            return staging, staging

    with pytest.raises(AssertionError, match="had to be refused"):
        Suite().test_what_cannot_be_kept_leaves_nothing_behind()


def test_what_was_made_is_closed_behind_each_test() -> None:
    closed = []

    class Closing(MemoryStaging):
        def close(self) -> None:
            closed.append(self)

    class Suite(StagingSourceSuite):
        def make(self) -> tuple[Any, Any]:
            staging = Closing()
            return staging, staging

    one = Suite()
    one.teardown_method()
    assert closed == []
    one.test_nothing_asked_is_nothing_found()
    one.teardown_method()
    assert len(closed) == 1
