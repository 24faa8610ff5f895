"""Where a staging store is opened: by everybody in the same way, as files that nobody but their owner may read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_ray.storage.opening import open_store
from gym_ray.storage.posix import OWNER_ONLY
from gym_ray.storage.store import SegmentStore

__all__ = ["open_staging_store"]


def open_staging_store(where: str | Path, storage_options: Mapping[str, Any] | None = None) -> SegmentStore:
    """Return the store at a place, without touching it yet; what is written there holds prompts, as captures do.

    Raises:
        SettingsError: The place is a file, or of a kind that nothing installed can open; or its client has no such
            option.
    """
    return open_store(where, storage_options=storage_options, mode=OWNER_ONLY)
