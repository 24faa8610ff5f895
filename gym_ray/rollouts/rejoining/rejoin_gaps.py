"""What is known to be missing of a rollout when it is joined again, long after its servers forgot it.

A later join can ask less than the first one could. So a gap that the servers' own lists made stays until the capture
itself shows that it was filled: nothing becomes complete because nobody remembers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from gym_ray.model_call_capture.attachment import CALLS_MISSING, INCOMPLETE, OPEN_CALLS, WRITER_UNREACHABLE
from gym_ray.model_call_capture.call_index import RecordedCall
from gym_ray.model_call_capture.quiesce import WrittenCalls

__all__ = ["carried_over", "gaps_of", "is_worth_asking"]

_OF_THE_SERVERS = frozenset((OPEN_CALLS, WRITER_UNREACHABLE, CALLS_MISSING))


def gaps_of(attachment: Mapping[str, Any]) -> dict[str, str]:
    """Return the gaps of an attachment: code to detail, "" without one."""
    gaps = attachment.get("gaps")
    listed = [gap for gap in gaps if isinstance(gap, dict)] if isinstance(gaps, list) else []
    return {str(gap.get("code")): str(gap.get("detail") or "") for gap in listed}


def is_worth_asking(attachment: Mapping[str, Any]) -> bool:
    """Return whether the servers could know more of a rollout than its record says."""
    return not _OF_THE_SERVERS.isdisjoint(gaps_of(attachment))


def carried_over(
    attachment: Mapping[str, Any], written: WrittenCalls, before: Collection[str], now: Collection[str]
) -> WrittenCalls:
    """Return what the servers say now, with what they said before and nobody has disproved.

    Args:
        attachment: The attachment of the earlier join.
        written: What the servers say now; nothing when they were not asked.
        before: Ids of the calls of the earlier join.
        now: Ids of the calls that the capture holds now.
    """
    gaps = gaps_of(attachment)
    found = len(set(now) - set(before))
    missing, found = _less(_count(gaps.get(CALLS_MISSING)), found)
    still_open, _ = _less(_count(gaps.get(OPEN_CALLS)), found)
    listed = {call.call_id for call in written.recorded} | set(written.lost_call_ids)
    missing = max(0, missing - len(listed - set(now)))
    writers = gaps.get(WRITER_UNREACHABLE, "").removeprefix("writers=").split(",")
    return replace(
        written,
        recorded=(*written.recorded, *(RecordedCall(f"\0missing {number}", "", 0, 0) for number in range(missing))),
        open_call_ids=written.open_call_ids or tuple(f"\0open {number}" for number in range(still_open)),
        unreachable_writers=tuple(dict.fromkeys(filter(None, (*writers, *written.unreachable_writers)))),
        marked_incomplete=written.marked_incomplete or INCOMPLETE in gaps,
    )


def _less(count: int, found: int) -> tuple[int, int]:
    """Return how many are left when ``found`` of them turned up, and how many others turned up."""
    used = min(count, found)
    return count - used, found - used


def _count(detail: str | None) -> int:
    number = (detail or "").removeprefix("count=")
    return int(number) if number.isdecimal() and number.isascii() and len(number) < 10 else int(detail is not None)
