from __future__ import annotations

import asyncio
import copy
import logging

import pytest

from gym_ray.errors import CaptureError, StorageError
from gym_ray.rollouts.tokens.token_sources import BoundedSource, StaleCaptures
from gym_ray.testing.token_source import FakeTokenSource, call_entry
from gym_ray.token_id_capture.delivery import finalize_rollout_token_capture, retire_rollout_token_capture
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot

RECORD = {"_ng_rollout_id": "3-1", "response": {"object": "response", "output": []}}


class HangingSource(FakeTokenSource):
    """Hangs in the methods that it is given."""

    def __init__(self, *hanging: str) -> None:
        super().__init__([call_entry("a", [1], [2])])
        self._hanging = hanging

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        await self._hang("freeze")
        return await super().freeze(rollout_id)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        await self._hang("drop")
        return await super().drop(rollout_id, snapshot_id=snapshot_id, version=version)

    async def close(self) -> None:
        await self._hang("close")

    async def _hang(self, method: str) -> None:
        if method in self._hanging:
            await asyncio.Event().wait()


async def test_a_source_that_answers_in_time_is_passed_on() -> None:
    given = HangingSource()
    source = BoundedSource(given, 30)
    record = copy.deepcopy(RECORD)
    build = await finalize_rollout_token_capture(record, source)
    assert "mask_sample" not in record
    assert await retire_rollout_token_capture("3-1", source, build)
    assert (given.froze, given.dropped) == (["3-1"], [("3-1", "snap", 7)])
    await source.close()


async def test_a_source_that_hangs_masks_the_record_or_keeps_the_capture(caplog: pytest.LogCaptureFixture) -> None:
    record = copy.deepcopy(RECORD)
    source = BoundedSource(HangingSource("freeze", "close"), 0.01)
    build = await finalize_rollout_token_capture(record, source)
    assert build is not None
    assert (record["mask_sample"], build["mask_reasons"]) == (True, ["freeze_failed"])
    assert "freeze of HangingSource did not end within 0.01 s" in record["_ng_token_capture"]["error"]
    await source.close()
    assert "HangingSource could not be closed" in caplog.text
    source = BoundedSource(HangingSource("drop"), 0.01)
    build = await finalize_rollout_token_capture(copy.deepcopy(RECORD), source)
    assert not await retire_rollout_token_capture("3-1", source, build)


class Keeper:
    """Deletes by blocking, or raises what it is given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.deleted: list[str] = []
        self.error, self.closed = error, False

    def delete(self, rollout_id: str) -> None:
        if self.error is not None:
            raise self.error
        self.deleted.append(rollout_id)

    async def close(self) -> None:
        self.closed = True


class AsyncKeeper(FakeTokenSource):
    """A source that can delete, as a coroutine."""

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__()
        self.deleted: list[str] = []
        self._hangs = hangs

    async def delete(self, rollout_id: str) -> None:
        if self._hangs:
            await asyncio.Event().wait()
        self.deleted.append(rollout_id)


async def test_captures_are_deleted_whether_that_blocks_or_is_awaited() -> None:
    keeper, source = Keeper(), AsyncKeeper()
    of_source = StaleCaptures.of(source)
    assert of_source is not None
    for stale in (StaleCaptures(keeper), of_source):
        await stale.delete("0-0")
        await stale.close()
    assert keeper.deleted == source.deleted == ["0-0"]
    assert keeper.closed


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (ValueError("gone"), CaptureError, r"0-0: Keeper could not delete its earlier capture: ValueError\('gone'\)"),
        (StorageError("full"), StorageError, "^full$"),
    ],
)
async def test_a_capture_that_cannot_be_deleted_is_an_error_of_ours(
    error: Exception, raised: type[Exception], message: str
) -> None:
    with pytest.raises(raised, match=message):
        await StaleCaptures(Keeper(error)).delete("0-0")


async def test_a_source_that_hangs_deletes_nothing_and_says_so() -> None:
    with pytest.raises(CaptureError, match="0-0: AsyncKeeper could not delete its earlier capture: TimeoutError"):
        await StaleCaptures(AsyncKeeper(hangs=True), 0.01).delete("0-0")


def test_a_source_that_cannot_delete_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert StaleCaptures.of(FakeTokenSource()) is None
    assert "FakeTokenSource has no delete(rollout_id)" in caplog.text
