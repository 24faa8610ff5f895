"""Which store this is: an id that is drawn once, when the store is first written to, and never again.

Keys carry it, so that a key of one store is refused by another instead of leading to somebody else's row.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from typing import Any, Final

from gym_ray.errors import StorageExistsError, StorageMissingError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.layout import STORE_FILE
from gym_ray.token_id_capture.staging.parquet.segments.schema import FORMAT, FORMAT_VERSION

__all__ = ["open_identity", "read_identity"]

_STORE_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_ID_BYTES: Final = 8


def open_identity(store: SegmentStore) -> str:
    """Return the id of a store, which has one from now on.

    Among several writers that open a new store at once, one draws the id and all return it. Where nothing can be
    created exclusively, the id follows from the place, so that all draw the same.

    Raises:
        StorageError: It could be neither read nor written.
        ValueError: ``store.json`` is not of this format.
    """
    found = read_identity(store)
    if found is not None:
        return found
    if not store.exclusive:
        store_id = hashlib.sha256(store.place.encode()).hexdigest()[: 2 * _ID_BYTES]
        store.publish(STORE_FILE, _encoded(store_id))
        return store_id
    store_id = secrets.token_hex(_ID_BYTES)
    try:
        store.create(STORE_FILE, _encoded(store_id))
    except StorageExistsError:
        return _decoded(store.read(STORE_FILE), store.place)
    return store_id


def read_identity(store: SegmentStore) -> str | None:
    """Return the id of a store, None for a place that has never been one.

    Raises:
        StorageError: It could not be read.
        ValueError: ``store.json`` is not of this format.
    """
    try:
        return _decoded(store.read(STORE_FILE), store.place)
    except StorageMissingError:
        return None


def _encoded(store_id: str) -> bytes:
    return json.dumps({"format": FORMAT, "version": FORMAT_VERSION, "store_id": store_id}).encode() + b"\n"


def _decoded(data: bytes, place: str) -> str:
    where = f"{place}/{STORE_FILE}"
    try:
        found: Any = json.loads(data)
    except ValueError as error:
        raise ValueError(f"{where} is not the JSON of a staging store: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{where} does not say that this is a staging store: no format {FORMAT!r}")
    if found.get("version") != FORMAT_VERSION:
        raise ValueError(f"{where} says version {found.get('version')!r}; this reads version {FORMAT_VERSION}")
    store_id = found.get("store_id")
    if not isinstance(store_id, str) or not _STORE_ID.fullmatch(store_id):
        raise ValueError(f"{where} has no store_id of 16 hex digits, but {store_id!r}")
    return store_id
