from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from gym_ray.token_id_capture.capturing.capture_health import CaptureHealth, PrefixCounts
from gym_ray.token_id_capture.records import ParentResolutionStatus


def test_decisions_are_counted_by_status_and_every_status_is_there() -> None:
    health = CaptureHealth()
    assert health.snapshot() == {
        "resolutions": {"root": 0, "resolved": 0, "unresolved": 0},
        "capture_failures": 0,
    }
    health.resolved(ParentResolutionStatus.ROOT)
    health.resolved(ParentResolutionStatus.RESOLVED)
    health.resolved(ParentResolutionStatus.RESOLVED)
    health.failed()
    assert health.snapshot() == {
        "resolutions": {"root": 1, "resolved": 2, "unresolved": 0},
        "capture_failures": 1,
    }


def test_untrainable_calls_are_counted_by_reason_and_prefixes_by_stage() -> None:
    health = CaptureHealth()
    for reason in ("ids_missing", "usage_missing", "ids_missing"):
        health.untrainable(reason)
    health.prefix(total=1)
    health.prefix(total=1, eligible=1, supplied=1)
    assert health.counts().untrainable == {"ids_missing": 2, "usage_missing": 1}
    assert health.prefix_counts() == PrefixCounts(supplied=1, eligible=1, total=2)


def test_a_warning_that_is_given_once_is_given_by_one_thread() -> None:
    health = CaptureHealth()
    with ThreadPoolExecutor(8) as threads:
        firsts = list(threads.map(lambda _: health.first_time("no lineage store"), range(100)))
    assert firsts.count(True) == 1
    assert health.first_time("something else")
