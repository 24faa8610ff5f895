"""Reads staged calls back by their keys: tokens, extras and media apart, so that nobody moves what it does not want."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from gym_ray.errors import StagedCallMissingError, StagedPrefixError, StorageMissingError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.digests import compute_chain_hash
from gym_ray.token_id_capture.staging.ledger_records import CallRecord, RolloutManifest
from gym_ray.token_id_capture.staging.parquet.calls.attachment_reading import AttachmentView, gathered
from gym_ray.token_id_capture.staging.parquet.calls.call_reading import (
    ATTACHMENT_COLUMNS,
    EXTRAS_COLUMNS,
    LINK_COLUMNS,
    SNAPSHOT_COLUMNS,
    CallIdentity,
    StoredAttachment,
    TokenLink,
    attachments_of,
    base_snapshot_of,
    extras_of,
    link_of,
)
from gym_ray.token_id_capture.staging.parquet.calls.key_lookup import FoundRow, KeyLookup, parse_keys
from gym_ray.token_id_capture.staging.parquet.calls.media_reading import media_parts
from gym_ray.token_id_capture.staging.parquet.segments.keys import SegmentKey
from gym_ray.token_id_capture.staging.parquet.segments.layout import check_partition
from gym_ray.token_id_capture.staging.parquet.segments.places import open_staging_store
from gym_ray.token_id_capture.staging.records import StagedCallBaseSnapshot
from gym_ray.token_id_capture.token_arrays import TokenArray, join_tokens

__all__ = ["ParquetStagingSource"]

_MAX_RELOCATIONS: Final = 8


class ParquetStagingSource:
    """Staged calls of a directory or an object store (C125-C127). Every method may be called from many threads.

    Args:
        where: An absolute path, a ``file://`` URL, or the URL of an object store: ``s3://``, ``abfs://`` or ``az://``,
            ``gs://``, and ``memory://`` within one process.
        partition: The only partition whose keys are read; None for all.
        storage_options: A map of what the client of the object store is to be given; none for a directory.
        max_parallel: Row groups that are read at once.
        store: The store itself, instead of ``where`` and ``storage_options`` which then only name it.

    Raises:
        SettingsError: The place is a file, or of a kind that nothing installed can open; or its client has no such
            option.
        ValueError: The partition has no possible name, or ``max_parallel`` is not positive.
    """

    def __init__(
        self,
        where: str | Path,
        *,
        partition: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        max_parallel: int = 8,
        store: SegmentStore | None = None,
    ) -> None:
        if max_parallel < 1:
            raise ValueError(f"max_parallel must be 1 or more, not {max_parallel}")
        self._partition = None if partition is None else check_partition(partition)
        self._owned = store is None
        self._store = open_staging_store(where, storage_options) if store is None else store
        self._lookup = KeyLookup(self._store, max_parallel)

    def __enter__(self) -> Self:
        """Return this; leaving the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; see :meth:`close`."""
        self.close()

    def close(self) -> None:
        """End threads and connections; a source that is used again starts new ones."""
        self._lookup.close()
        if self._owned:
            self._store.close()

    def fetch(self, staging_keys: Sequence[str]) -> list[StagedCallBaseSnapshot]:
        """Return one snapshot a key, in the order asked: metadata and token columns, no extras and no media (C125).

        Raises:
            StagedCallMissingError: A key leads to no call, is asked for twice, or is retired (C126). A KeyError.
            ForeignKeyError: A key is of another store.
            ValueError: A row or its file is damaged; file, row and what is wrong are named.
            StorageError: The store could not be read.
        """
        return self._lookup.rows(
            self._keys(staging_keys), SNAPSHOT_COLUMNS, lambda found: base_snapshot_of(found.table, found.row)
        )

    def fetch_prefix_token_ids(self, staging_keys: Sequence[str]) -> TokenArray:
        """Return the deltas of a chain, given from the root on, as one read-only array (C127).

        Only ids and links are read; the chain hash of each call proves its ids and its place after the one before.

        Raises:
            StagedPrefixError: The keys are no chain from a root on, or its ids do not give its hashes. A ValueError.
            StagedCallMissingError: As :meth:`fetch`; so do the others.
        """
        links = self._lookup.rows(
            self._keys(staging_keys), LINK_COLUMNS, lambda found: link_of(found.table, found.row, found.identity)
        )
        _require_chain(links)
        return join_tokens([link.token_ids for link in links])

    def fetch_extras(self, staging_keys: Sequence[str]) -> list[dict[str, Any] | None]:
        """Return the extras of each key's call in the order asked, None for a call without; raises as :meth:`fetch`."""
        return self._lookup.rows(
            self._keys(staging_keys), EXTRAS_COLUMNS, lambda found: extras_of(found.table, found.row)
        )

    def fetch_attachments(self, staging_key: str) -> dict[str, AttachmentView | list[AttachmentView]]:
        """Return what was handed over with a call, by name and in its order; a list for what was a list.

        The bytes stay in storage until a view is read. Empty for a call without any. Raises as :meth:`fetch`.
        """
        (key,) = self._keys([staging_key])
        segment, stored = self._attachments(key)
        place = f"{self._store.place}/{segment}, {key}"
        return gathered([AttachmentView(one, place, lambda entry: self._parts(key, entry)) for one in stored], place)

    def open_attachment(self, staging_key: str, name: str, item: int | None = None) -> AttachmentView:
        """Return one attachment of a call, or one item of a list of them.

        Raises:
            KeyError: The call has no such attachment, or the list no such item.
            StagedCallMissingError: As :meth:`fetch`; so do the others.
        """
        all_of_call = self.fetch_attachments(staging_key)
        found = all_of_call.get(name)
        if isinstance(found, list) and item is not None and 0 <= item < len(found):
            return found[item]
        if isinstance(found, AttachmentView) and item is None:
            return found
        raise KeyError(
            f"{self._store.place}, staging key {staging_key}: attachment {name!r}: {_why_not(found, all_of_call, item)}"
        )

    def delete(self, staging_keys: Sequence[str]) -> int:
        """Retire calls by their keys, and return how many were not retired before; see :meth:`retire`.

        Raises:
            StagedCallMissingError: A key leads to no call; nothing is retired.
            ForeignKeyError: A key is of another store; nothing is retired.
        """
        calls = self._lookup.identities(self._keys(staging_keys))
        rollouts: dict[str, list[CallIdentity]] = defaultdict(list)
        for call in calls:
            rollouts[call.rollout_id].append(call)
        return sum(self._lookup.retirements.retire(rollout, found) for rollout, found in rollouts.items())

    def retire(self, manifest: RolloutManifest) -> int:
        """Retire every call of a manifest, dead branches too, and return how many were not retired before (C347).

        From then on their keys lead nowhere, in every process. Compaction frees their space. Doing it again is fine.

        Raises:
            StagedCallMissingError: A key is not of this kind of store; nothing is retired.
            ForeignKeyError: A call was staged in another store; nothing is retired.
            ValueError: A key does not fit its call's digest; nothing is retired.
            StorageError: It could not be written.
        """
        records = _distinct(manifest.records)
        keys = self._keys([record.staging_key for record in records])
        store_id = self._lookup.store_id() or "(none)"
        calls = []
        for key, record in zip(keys, records, strict=True):
            key.require_store(store_id, self._store.place)
            if not record.digest.startswith(key.digest8):
                raise ValueError(f"staging key {key} is not one of a call with the digest {record.digest}")
            calls.append(CallIdentity(manifest.rollout_id, record.model_call_id, record.digest))
        return self._lookup.retirements.retire(manifest.rollout_id, calls) if calls else 0

    def _keys(self, staging_keys: Sequence[str]) -> list[SegmentKey]:
        keys = parse_keys(staging_keys)
        for key in keys:
            if self._partition not in (None, key.partition):
                raise StagedCallMissingError(
                    str(key), f"it is of partition {key.partition!r}; only {self._partition!r} is read here"
                )
        return keys

    def _attachments(self, key: SegmentKey) -> tuple[str, list[StoredAttachment]]:
        def take(found: FoundRow) -> tuple[str, list[StoredAttachment]]:
            return found.segment, attachments_of(found.table, found.row) or []

        ((segment, stored),) = self._lookup.rows([key], ATTACHMENT_COLUMNS, take)
        return segment, stored

    def _parts(self, key: SegmentKey, wanted: StoredAttachment) -> Iterator[memoryview]:
        """Yield the parts of an attachment; where compaction moves them meanwhile, go on in the new segment."""
        done = 0
        for _ in range(_MAX_RELOCATIONS):
            segment, stored = self._attachments(key)
            current = next(
                (
                    one
                    for one in stored
                    if (one.name, one.item, one.sha256) == (wanted.name, wanted.item, wanted.sha256)
                ),
                None,
            )
            if current is None:
                raise ValueError(
                    f"{self._store.place}/{segment}: attachment {wanted.name!r} of {key} is not there any more"
                )
            try:
                for part in media_parts(self._lookup.segments.open(segment), current, first_part=done):
                    yield part
                    done += 1
            except StorageMissingError:
                self._lookup.segments.forget(segment)
            else:
                return
        raise StorageMissingError(f"{self._store.place}: the segments of {key} are moved faster than they can be read")


def _distinct(records: Sequence[CallRecord]) -> list[CallRecord]:
    """Return the rows of a manifest without repetitions: a call may stand there twice (C72)."""
    return list({record.staging_key: record for record in records}.values())


def _require_chain(links: Sequence[TokenLink]) -> None:
    parent: TokenLink | None = None
    length = 0
    for link in links:
        call = f"call {link.identity.model_call_id} of rollout {link.identity.rollout_id}"
        expected = parent.identity.model_call_id if parent is not None else None
        if link.parent_call_id != expected or link.prev_len != length:
            raise StagedPrefixError(
                f"{call} continues {link.parent_call_id or 'nothing'} after {link.prev_len} tokens; as the next of the "
                f"chain it would continue {expected or 'nothing'} after {length}"
            )
        if parent is not None and parent.identity.rollout_id != link.identity.rollout_id:
            raise StagedPrefixError(f"{call} continues a call of rollout {parent.identity.rollout_id}")
        if compute_chain_hash(parent.chain_hash if parent is not None else None, link.token_ids) != link.chain_hash:
            raise StagedPrefixError(f"the token ids of {call} do not give its chain hash {link.chain_hash}")
        parent, length = link, length + int(np.size(link.token_ids))


def _why_not(found: AttachmentView | list[AttachmentView] | None, others: Iterable[str], item: int | None) -> str:
    """Say why an attachment, or an item of one, is not there, and what is."""
    if found is None:
        names = ", ".join(map(repr, others))
        return f"the call has no such attachment; it has {names}" if names else "the call has no attachments"
    if isinstance(found, AttachmentView):
        return f"it is no list and has no item {item}; leave the item out"
    if not found:
        return "it is an empty list"
    choice = f"name an item 0 to {len(found) - 1}" if len(found) > 1 else "name item 0"
    if item is None:
        return f"it is a list of {len(found)}; {choice}"
    return f"it has no item {item}; {choice}"
