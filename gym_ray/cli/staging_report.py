"""What ``gym-ray staging`` says of a call, before anybody decides how it looks, and how it finds a store."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import CaptureError, SettingsError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet import (
    AttachmentView,
    ParquetStagingSource,
    list_partitions,
    open_staging_store,
)

__all__ = ["call_document", "open_place", "require_partition"]


def open_place(where: str, storage_options: str | None) -> SegmentStore:
    """Return the store that a command names; a relative path is one below the working directory.

    Raises:
        SettingsError: The place cannot be opened, or the options are no JSON object.
    """
    options = None
    if storage_options is not None:
        try:
            options = exact_json.loads(storage_options.encode())
        except ValueError:
            options = None
        if not isinstance(options, dict):
            raise SettingsError("command line", "--storage-options", "it is no JSON object", 'such as {"anon": true}')
    return open_staging_store(where if "://" in where else str(Path(where).absolute()), options)


def require_partition(store: SegmentStore, partition: str) -> None:
    """Make sure that a store has a partition, or had one whose segments are gone.

    Raises:
        CaptureError: It has none of this name; those that it has are named.
        StorageError: The store could not be read.
    """
    present = list_partitions(store)
    if partition not in present:
        there_are = f"there are {', '.join(present)}" if present else "there is none yet"
        raise CaptureError(f"{store.place}: there is no partition {partition!r}; {there_are}")


def call_document(store: SegmentStore, key: str) -> dict[str, Any]:
    """Return all that is known of one call, its tokens included, its media described.

    Raises:
        StagedCallMissingError: The key leads nowhere.
        ForeignKeyError: It is a key of another store.
        StorageError: The store could not be read.
        ValueError: The row or its file is damaged.
    """
    with ParquetStagingSource(store.place, store=store) as source:
        (snapshot,), (extras,) = source.fetch([key]), source.fetch_extras([key])
        attachments = source.fetch_attachments(key)
    sampled = snapshot.token_mask_delta.array.astype(bool)
    log_probs = snapshot.generation_log_probs_delta.array[sampled]
    return {
        "key": key,
        **snapshot.model_dump(mode="json"),
        "generated": int(sampled.sum()),
        "mean_log_prob": math.fsum(log_probs.tolist()) / len(log_probs) if len(log_probs) else None,
        "extras": extras,
        "attachments": [_described(view) for found in attachments.values() for view in _views(found)],
    }


def _views(found: AttachmentView | list[AttachmentView]) -> list[AttachmentView]:
    return found if isinstance(found, list) else [found]


def _described(view: AttachmentView) -> dict[str, Any]:
    return {
        "name": view.name,
        "item": view.item,
        "dtype": view.dtype,
        "shape": list(view.shape),
        "nbytes": view.nbytes,
        "sha256": view.sha256.hex(),
    }
