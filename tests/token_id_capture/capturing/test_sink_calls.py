from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gym_ray.errors import RolloutIdError
from gym_ray.testing.token_sinks import NotingTokenSink, PlainTokenSink
from gym_ray.token_id_capture.bounded_calls import BoundedCalls
from gym_ray.token_id_capture.capturing.sink_calls import SinkCalls
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore

DEADLINE_S = 10.0
ENTRY = TokenEntry(
    rollout_id="r0", model_call_id="c0", prompt_token_ids=[1], generation_token_ids=[2], generation_log_probs=[-0.5]
)


def calls(sink: object, timeout_s: float | None = None) -> SinkCalls:
    return SinkCalls(sink, BoundedCalls(timeout_s))


async def test_a_mark_with_a_reason_goes_where_reasons_are_kept() -> None:
    notes, plain = NotingTokenSink(), PlainTokenSink()
    for sink in (notes, plain):
        await calls(sink).mark("r0", "c0", "usage_missing")
        await calls(sink).mark("r0", "c1")
        await calls(sink).mark("r0", "", "why")
    assert notes.ended == [("r0", "c0", "untrainable", "usage_missing")]
    assert notes.marks == [("r0", "c1"), ("r0", "")]
    assert plain.marks == [("r0", "c0"), ("r0", "c1"), ("r0", "")]


async def test_a_sink_without_put_is_an_error() -> None:
    with pytest.raises(TypeError, match="object has no method put"):
        await calls(object()).put(ENTRY)


async def test_a_method_that_is_no_coroutine_is_an_error() -> None:
    class _Blocking:
        def put(self, entry: TokenEntry) -> None:
            return None

    with pytest.raises(TypeError):
        await calls(_Blocking(), DEADLINE_S).put(ENTRY)


async def test_an_id_that_names_no_file_is_not_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = TokenCaptureStore(tmp_path)
    with pytest.raises(RolloutIdError):
        await store.mark_incomplete("a/b")
    await calls(store).mark("a/b", "c0", "usage_missing")
    await store.close()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
