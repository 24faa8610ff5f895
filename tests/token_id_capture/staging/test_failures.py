"""Failures are counted by class, from any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from gym_ray.token_id_capture.staging.failures import FAILURE_KINDS, FailureCounts


def test_every_kind_is_there_from_the_start_and_counts_by_itself() -> None:
    counts = FailureCounts()
    before = counts.snapshot()
    assert before == dict.fromkeys(FAILURE_KINDS, 0)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: counts.add("deadline"), range(800)))
    assert counts.snapshot() == {**before, "deadline": 800}
    assert before["deadline"] == 0
