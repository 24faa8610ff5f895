"""Two processes' ledgers of files, in any order of calls, do what the one in memory does."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray.storage.calls import FileCalls
from gym_ray.testing.ledger_commits import asked_at, commit_of_turn
from gym_ray.token_id_capture.staging import CaptureLedger, FileCaptureLedger, MemoryCaptureLedger

ROLLOUTS = ("r1", "r2")
TURNS = range(4)

Step = Callable[[CaptureLedger], Awaitable[Any]]


class Unsynced(FileCalls):
    """Syncs nothing: what a power cut leaves is not the matter here."""

    def sync_data(self, fd: int) -> None:
        pass

    def sync(self, fd: int) -> None:
        pass


def a_step(chance: random.Random) -> Step:
    rollout_id, turn = chance.choice(ROLLOUTS), chance.choice(TURNS)
    if (kind := chance.random()) < 0.5:
        twin = {} if chance.random() < 0.7 else {"call_id": f"twin{turn}"}
        commit = commit_of_turn(turn, rollout_id, tokens=chance.choice(["", "", "others"]), **twin)
        return lambda ledger: ledger.record(commit)
    if kind < 0.65:
        call_id, reason = f"c{turn}", chance.choice("ab")
        return lambda ledger: ledger.record_failure(rollout_id, call_id, reason)
    if kind < 0.92:
        return lambda ledger: ledger.resolve(rollout_id, asked_at(turn + 1))
    ids = chance.sample(ROLLOUTS, chance.choice([1, 2]))
    if kind < 0.95:
        return lambda ledger: ledger.retire(ids)
    return lambda ledger: ledger.delete(ids)


def asking_manifest(rollout_id: str) -> Step:
    return lambda ledger: ledger.manifest(rollout_id)


def asking_rows(rollout_id: str) -> Step:
    return lambda ledger: ledger.has_rows(rollout_id)


async def outcome(step: Step, ledger: CaptureLedger) -> object:
    try:
        found = await step(ledger)
    except (ValueError, RuntimeError) as error:
        return type(error)
    match = getattr(found, "match", None)
    if match is not None:
        return match.model_call_id, match.staging_chain, match.prev_len, match.chain_hash, match.digest
    return found


@pytest.mark.parametrize("seed", range(8))
async def test_any_order_of_calls_has_one_outcome(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    files = [FileCaptureLedger(tmp_path, calls=Unsynced()) for _ in range(2)]
    memory = MemoryCaptureLedger()
    seen: set[object] = set()
    for number in range(150):
        step = a_step(chance)
        expected = await outcome(step, memory)
        assert await outcome(step, chance.choice(files)) == expected, number
        seen.add(expected if isinstance(expected, type) else type(expected))
        for rollout_id in ROLLOUTS:
            for ask in (asking_manifest(rollout_id), asking_rows(rollout_id)):
                assert await outcome(ask, chance.choice(files)) == await outcome(ask, memory), number
    assert len(seen) > 3  # matches, conflicts and removals among them
    for ledger in files:
        await ledger.close()
