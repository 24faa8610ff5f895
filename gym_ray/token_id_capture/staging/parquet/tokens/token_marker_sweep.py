"""Forgets dropped rollouts: their markers go once they are old and nothing of the rollout is left anywhere.

While a marker stands, a writer that comes late is told, and what it wrote is left out by compaction. A marker whose
rollout has rows anywhere, also in a segment that waits for its removal, never goes: the rollout would be alive again.
"""

from __future__ import annotations

from collections.abc import Collection

from gym_ray.token_id_capture.staging.parquet.tokens.token_markers import TokenMarkers
from gym_ray.token_id_capture.staging.parquet.tokens.token_segment_file import rollout_key

__all__ = ["forget_dropped"]


def forget_dropped(markers: TokenMarkers, present: Collection[int], before: float) -> list[str]:
    """Remove the markers of rollouts that were dropped long ago, and return the rollouts.

    Args:
        markers: The markers.
        present: Keys of the rollouts that have rows, in every partition of the store.
        before: Those that were dropped before, seconds since 1970; long before the rows were looked for.

    Raises:
        CaptureError: A marker is damaged.
        StorageError: It could not be done; what was removed is whole, or is ended by the next call.
    """
    forgotten = []
    for rollout_id in markers.dropped():
        if rollout_key(rollout_id) in present and markers.is_frozen(rollout_id):
            continue  # rows of one that is not frozen are of its new life: an earlier call did not come to its end
        fence = markers.fence(rollout_id)
        if fence is not None and fence.done and fence.at is not None and fence.at <= before:
            markers.forget_dropped(rollout_id, fence)
            forgotten.append(rollout_id)
    return forgotten
