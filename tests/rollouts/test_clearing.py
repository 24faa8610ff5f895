from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.capture_location import CaptureLocation
from gym_ray.model_call_capture import CaptureStore
from gym_ray.rollouts.clearing import Clearing
from gym_ray.rollouts.tokens.token_sources import StaleCaptures
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore


@pytest.mark.parametrize("apart", [True, False], ids=["two directories", "one directory"])
async def test_both_captures_of_an_attempt_begin_anew_and_others_stay(tmp_path: Path, apart: bool) -> None:
    calls, tokens = tmp_path / "calls", tmp_path / ("tokens" if apart else "calls")
    calls.mkdir()
    store = TokenCaptureStore(tokens)
    for rollout_id in ("0-0", "0-1"):
        (calls / f"{rollout_id}.capture.jsonl").write_text('{"model_call_id": "c"}\n')
        entry = TokenEntry(
            rollout_id=rollout_id,
            model_call_id="c",
            prompt_token_ids=[1],
            generation_token_ids=[2],
            generation_log_probs=[-0.5],
        )
        await store.put(entry)
    await store.mark_incomplete("0-0", "c2")
    clearing = Clearing(CaptureLocation.of(calls), StaleCaptures(TokenCaptureStore(tokens)))
    await clearing.clear(["0-0"])
    await clearing.aclose()
    assert CaptureStore(calls).snapshot("0-0").data in (b"", None)
    assert store.read_entries("0-0") == []
    assert not store.is_incomplete("0-0")
    assert len(store.read_entries("0-1")) == 1
    assert (calls / "0-1.capture.jsonl").read_bytes()
    await store.close()


async def test_a_run_without_captures_has_nothing_to_clear() -> None:
    clearing = Clearing(None)
    await clearing.clear(["0-0"])
    await clearing.aclose()
