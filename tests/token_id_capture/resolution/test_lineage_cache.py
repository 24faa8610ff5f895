from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from gym_ray.testing.scripted_calls import scripted_call, user
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.resolution.lineage_cache import LineageCache, RolloutState
from gym_ray.token_id_capture.resolution.rollout_lineage import RolloutLineage


def cache(max_rollouts: int = 10, max_tokens: int = 10_000) -> LineageCache:
    return LineageCache(lambda _: RolloutState(RolloutLineage()), max_rollouts=max_rollouts, max_tokens=max_tokens)


def fill(kept: LineageCache, rollout_id: str, tokens: int, call: str = "a") -> None:
    entry = scripted_call(call, [user("q")], [], range(tokens), [], rollout_id=rollout_id)
    with kept.using(rollout_id) as state:
        state.lineage.add(PackedEntry.of_entry(entry))


def test_totals_follow_what_is_kept() -> None:
    kept = cache(max_tokens=3_000)
    fill(kept, "x", 1_000)
    one = kept.tokens
    assert one >= 1_000
    fill(kept, "y", 1_000)
    assert kept.tokens == 2 * one
    fill(kept, "x", 1_500, call="b")
    assert kept.rollouts() == ["x"]
    assert kept.tokens == one + one + 500
    kept.clear()
    assert (kept.tokens, kept.rollouts()) == (0, [])


def test_a_rollout_that_was_replaced_in_use_is_counted_anew() -> None:
    kept = cache()
    fill(kept, "x", 1_000)
    with kept.using("x") as state:
        state.lineage = RolloutLineage()
    assert kept.tokens == 0


def test_use_that_fails_is_settled_too() -> None:
    kept = cache()
    with pytest.raises(OSError, match="gone"), kept.using("x"):
        raise OSError("gone")
    with kept.using("x") as state:
        assert len(state.lineage) == 0


def test_one_rollout_can_be_forgotten_also_in_use() -> None:
    kept = cache()
    fill(kept, "x", 1_000)
    before = kept.tokens
    fill(kept, "y", 1_000)
    with kept.using("y"):
        kept.forget("y")
    kept.forget("unknown")
    assert (kept.tokens, kept.rollouts()) == (before, ["x"])
    with kept.using("y") as state:
        assert len(state.lineage) == 0


def test_what_is_forgotten_in_use_stays_with_its_user() -> None:
    kept = cache(max_rollouts=1)
    with kept.using("x") as state:
        fill(kept, "y", 10)
        assert kept.rollouts() == ["y"]
        state.lineage.add(PackedEntry.of_entry(scripted_call("a", [user("q")], [], [1], [2], rollout_id="x")))
    assert kept.rollouts() == ["y"]
    assert kept.tokens < 1_000


def test_totals_hold_after_many_threads() -> None:
    kept = cache(max_rollouts=4, max_tokens=5_000)

    def work(number: int) -> None:
        for turn in range(20):
            fill(kept, f"r{(number + turn) % 6}", 50, call=f"c{number}-{turn}")

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, number) for number in range(8)]:
            done.result()
    total = 0
    for rollout_id in kept.rollouts():
        with kept.using(rollout_id) as state:
            total += state.lineage.weight
    assert kept.tokens == total
    assert len(kept.rollouts()) <= 4
