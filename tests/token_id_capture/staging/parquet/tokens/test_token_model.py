"""The Parquet sink and source against the model of the token store: same answers to the same operations."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.errors import RecordConflictError, RolloutFrozenError, RolloutRetiredError
from gym_ray.storage.opening import open_store
from gym_ray.testing.token_source import call_entry
from gym_ray.testing.token_store_model import ModelRefusal, TokenStoreModel
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot
from gym_ray.token_id_capture.staging.parquet import CompactionRules, ParquetTokenSink, ParquetTokenSource, compact

ROLLOUT = "3-1"
KINDS = {"retired": RolloutRetiredError, "frozen": RolloutFrozenError, "call_id_reused": RecordConflictError}
CALL = st.sampled_from(["c0", "c1", "c2"])
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), CALL, st.integers(0, 1)),
    st.tuples(st.just("begin"), CALL),
    st.tuples(st.just("withdraw"), CALL),
    st.tuples(st.just("mark")),
    st.tuples(st.just("freeze")),
    st.tuples(st.just("drop"), st.booleans()),
    st.tuples(st.just("delete")),
    st.tuples(st.just("compact"), st.booleans()),
)


class Both:
    """The model and the real thing, given the same operations."""

    def __init__(self) -> None:
        where = f"memory://{secrets.token_hex(6)}"
        self.model = TokenStoreModel()
        self.where = where
        self.sink, self.source = ParquetTokenSink(where), ParquetTokenSource(where)
        self.snapshot: TokenCaptureSnapshot | None = None
        self.frozen_at: tuple[Any, ...] | None = None
        self.late: set[str] = set()

    async def apply(self, operation: tuple[Any, ...]) -> None:
        name, *arguments = operation
        await getattr(self, f"_{name}")(*arguments)

    async def _put(self, call_id: str, variant: int) -> None:
        entry = call_entry(call_id, [1], [2 + variant])
        taken = await self._same(lambda: self.model.put({"cid": call_id, "v": variant}), self.sink.put(entry))
        if taken is None and self.model.frozen:
            self.late.add(call_id)  # refused, and yet it may lie in the store

    async def _begin(self, call_id: str) -> None:
        await self._same(lambda: self.model.begin(call_id), self.sink.begin_call(ROLLOUT, call_id))

    async def _withdraw(self, call_id: str) -> None:
        await self._same(lambda: self.model.withdraw(call_id), self.sink.end_call(ROLLOUT, call_id, "withdrawn"))

    async def _mark(self) -> None:
        await self._same(self.model.mark, self.sink.mark_incomplete(ROLLOUT))

    async def _freeze(self) -> None:
        found = await self._same(self.model.freeze, self.source.freeze(ROLLOUT))
        if found is None:
            return
        (calls, incomplete, version), snapshot = found
        kept = {entry.model_call_id for entry in snapshot.entries}
        assert len(kept) == len(snapshot.entries)
        assert set(calls) <= kept <= {*calls, *self.late}
        assert snapshot.incomplete >= self.model.incomplete
        if not self.late:
            assert snapshot.incomplete == incomplete
        if self.snapshot is not None and self.frozen_at == (self.model.snapshots, version):
            assert snapshot.snapshot_id == self.snapshot.snapshot_id
        self.snapshot, self.frozen_at = snapshot, (self.model.snapshots, version)

    async def _drop(self, of_another: bool) -> None:
        """Drop the last snapshot; the model says whether it may go, and what is added behind a freeze may forbid it."""
        if self.snapshot is None or self.frozen_at is None:
            return
        number, version = self.frozen_at
        right = number == self.model.snapshots and not of_another
        dropped = await self.source.drop(
            ROLLOUT,
            snapshot_id="another" if of_another else self.snapshot.snapshot_id,
            version=self.snapshot.version,
        )
        allowed = self.model.frozen and right and self.model.version() == version
        assert not dropped or allowed
        if dropped:
            assert self.model.drop(is_right_snapshot=True, version=version)
        if allowed and not dropped:  # a refused record lies in the store, and the version says so
            again = await self.source.freeze(ROLLOUT)
            assert again.version > self.snapshot.version

    async def _delete(self) -> None:
        self.model.delete()
        self.late.clear()
        await asyncio.to_thread(self.source.delete, ROLLOUT)

    async def _compact(self, forgets: bool) -> None:
        """Compact, which changes nothing but that the markers of a dropped rollout may go."""
        rules = CompactionRules(delay_s=0.0, forget_dropped_after_s=0.0 if forgets else None)
        report = await asyncio.to_thread(compact, open_store(self.where), rules=rules)
        assert report.problems == []
        assert report.waiting == []
        if report.forgotten:
            assert report.forgotten == [ROLLOUT]
            assert self.model.sweep(is_old_enough=forgets) == 1
            self.late.clear()

    async def _same(self, expected: Callable[[], Any], real: Any) -> tuple[Any, Any] | None:
        try:
            wanted = expected()
        except ModelRefusal as refusal:
            kind = KINDS[refusal.kind]
        else:
            return wanted, await real
        with pytest.raises(kind):
            await real
        return None


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATIONS, max_size=14))
def test_it_answers_as_the_model(operations: list[tuple[Any, ...]]) -> None:
    async def run() -> None:
        both = Both()
        try:
            for operation in operations:
                await both.apply(operation)
            assert await both.sink.has_evidence(ROLLOUT) >= bool(both.model.calls() or both.model.retired)
        finally:
            await both.sink.close()
            await both.source.close()

    asyncio.run(run())
