from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import CaptureError, StorageError
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


class _Slow:
    """Captures whose servers take their time; one rollout cannot be cleared."""

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []
        self.cleared: list[str] = []
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def forget(self, rollout_ids: Sequence[str], **_: object) -> tuple[str, ...]:
        self.rounds.append(list(rollout_ids))
        self.asked.set()
        await self.go_on.wait()
        return ()

    def clear(self, rollout_id: str) -> None:
        if rollout_id == "3-0":
            raise CaptureError("3-0: cannot be cleared")
        self.cleared.append(rollout_id)

    def close(self) -> None:
        pass


async def test_attempts_that_wait_are_cleared_in_one_round_and_fail_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = _Slow()
    monkeypatch.setattr("gym_ray.rollouts.clearing.open_captures", lambda _: slow)
    clearing = Clearing(CaptureLocation.of("/nowhere"))
    waiting = [asyncio.create_task(clearing.clear([f"{number}-0"])) for number in range(6)]
    await slow.asked.wait()
    waiting[4].cancel()
    slow.go_on.set()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert slow.rounds == [[f"{number}-0" for number in range(6)]]
    assert [type(found) for found in ended] == [
        type(None),
        type(None),
        type(None),
        CaptureError,
        asyncio.CancelledError,
        type(None),
    ]
    assert sorted(slow.cleared) == ["0-0", "1-0", "2-0", "4-0", "5-0"]
    await clearing.aclose()


async def test_who_waits_for_a_clearing_that_is_closed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = _Slow()
    monkeypatch.setattr("gym_ray.rollouts.clearing.open_captures", lambda _: slow)
    clearing = Clearing(CaptureLocation.of("/nowhere"))
    first = asyncio.create_task(clearing.clear(["0-0"]))
    await slow.asked.wait()
    second = asyncio.create_task(clearing.clear(["1-0"]))
    await asyncio.sleep(0)
    await clearing.aclose()
    for waiting in (first, second):
        with pytest.raises(StorageError, match="the run ended"):
            await waiting


async def test_attempts_that_come_soon_after_a_round_share_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = _Slow()
    slow.go_on.set()
    monkeypatch.setattr("gym_ray.rollouts.clearing.open_captures", lambda _: slow)
    monkeypatch.setattr("gym_ray.rollouts.clearing._APART_S", 0.5)
    clearing = Clearing(CaptureLocation.of("/nowhere"))
    await clearing.clear(["0-0"])
    waiting = []
    for number in (5, 6, 7):
        waiting.append(asyncio.create_task(clearing.clear([f"{number}-0"])))
        for _ in range(5):
            await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert slow.rounds == [["0-0"], ["5-0", "6-0", "7-0"]]
    late = asyncio.create_task(clearing.clear(["8-0"]))
    await asyncio.sleep(0)
    await clearing.aclose()
    with pytest.raises(StorageError, match="the run ended"):
        await late
