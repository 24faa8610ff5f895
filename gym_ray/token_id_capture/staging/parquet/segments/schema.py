"""Schema v1 of the segments, and how their Parquet files are encoded.

The columns that a base snapshot needs come first and next to each other, so that one range of the file holds them;
extras, attachments and media follow, and a reader that does not want them never moves them. Only ``rollout_id`` has
statistics: a reader prunes by rollout, and by nothing else.

Free-form JSON is text here, never inferred structs, and media are bounded parts, never one column chunk without limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from gym_ray.token_id_capture.staging.parquet.segments.layout import CALLS_KIND, EVENTS_KIND, TOKENS_KIND

__all__ = [
    "ATTACHMENT_TYPE",
    "BASE_COLUMNS",
    "CALLS_PER_ROW_GROUP",
    "CALLS_SCHEMA",
    "CALL_ROW",
    "FORMAT",
    "FORMAT_VERSION",
    "MAX_SEGMENT_BYTES",
    "MEDIA_PART_BYTES",
    "MEDIA_ROW",
    "MEDIA_ROW_GROUP_BYTES",
    "TOKENS_PER_ROW_GROUP",
    "SegmentFacts",
    "check_metadata",
    "file_metadata",
    "writer_options",
]

FORMAT: Final = "gym-ray-staging"
FORMAT_VERSION: Final = 1

CALL_ROW: Final = "call"
MEDIA_ROW: Final = "media"

CALLS_PER_ROW_GROUP: Final = 16
TOKENS_PER_ROW_GROUP: Final = 32_768
"""A row group takes no call that would bring it above this many tokens, unless it is its first."""
MAX_SEGMENT_BYTES: Final = 24 * 1024 * 1024
"""Bytes of calls and media, before compression, that are put into one segment; one call alone may have more.

Each row group takes about 1.9 KB of the footer, and who wants one call reads the footer and one row group: these bounds
keep both together below 512 KiB, and also a segment with one call that has a gigabyte of media.
"""
MEDIA_PART_BYTES: Final = 8 * 1024 * 1024
"""A media row holds this many bytes, the last one of an attachment what is left."""
MEDIA_ROW_GROUP_BYTES: Final = 4 * 1024 * 1024
"""A row group takes no more media rows once it has this many bytes."""

_HASH: Final = pa.binary(32)

ATTACHMENT_TYPE: Final = pa.struct(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("item", pa.uint32(), nullable=False),  # place in a ragged list, 0 for a single value
        pa.field("dtype", pa.string(), nullable=False),
        pa.field("shape", pa.list_(pa.uint64()), nullable=False),
        pa.field("nbytes", pa.uint64(), nullable=False),
        pa.field("sha256", _HASH, nullable=False),
        # The row of the file, counted from 0 over all row groups, that holds the first part; the others follow it,
        # MEDIA_PART_BYTES each. Null where there are no bytes. Equal bytes of one file share their parts.
        pa.field("media_row", pa.uint64()),
    ]
)

_BASE_FIELDS: Final = [
    pa.field("row_kind", pa.string(), nullable=False),
    pa.field("rollout_id", pa.string()),
    pa.field("model_call_id", pa.string()),
    pa.field("parent_call_id", pa.string()),
    pa.field("mode", pa.string()),
    pa.field("prev_len", pa.uint64()),
    pa.field("delta_len", pa.uint64()),
    pa.field("cum_len", pa.uint64()),
    pa.field("weight_version", pa.uint64()),
    pa.field("digest", _HASH),
    pa.field("extras_digest", _HASH),
    pa.field("chain_hash", _HASH),
    pa.field("cumulative_hash", _HASH),
    pa.field("token_ids", pa.list_(pa.int32())),  # null where an id needs more: then token_ids_wide has all of the call
    pa.field("token_ids_wide", pa.list_(pa.uint64())),
    pa.field("token_mask", pa.list_(pa.bool_())),
    pa.field("log_probs", pa.list_(pa.float32())),
]

BASE_COLUMNS: Final = tuple(field.name for field in _BASE_FIELDS[1:])
"""What a base snapshot is made of, in the order of the file."""

CALLS_SCHEMA: Final = pa.schema(
    [
        *_BASE_FIELDS,
        pa.field("extras_json", pa.large_string()),  # null: no extras
        pa.field("attachments", pa.list_(ATTACHMENT_TYPE)),  # null: none were supplied
        pa.field("media_data", pa.large_binary()),  # of media rows only
    ]
)

_PREFIX: Final = "gym_ray."
_KINDS: Final = frozenset({CALLS_KIND, TOKENS_KIND, EVENTS_KIND})


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What the metadata of a segment says of it.

    Attributes:
        kind: What its rows are.
        store_id: The store that it was written for.
        name: The name that it was written under; compaction writes rows anew.
    """

    kind: str
    store_id: str
    name: str


def file_metadata(facts: SegmentFacts) -> dict[str, str]:
    """Return the key-value metadata of a segment's Parquet file."""
    return {
        f"{_PREFIX}format": FORMAT,
        f"{_PREFIX}version": str(FORMAT_VERSION),
        f"{_PREFIX}kind": facts.kind,
        f"{_PREFIX}store_id": facts.store_id,
        f"{_PREFIX}name": facts.name,
    }


def check_metadata(metadata: Mapping[bytes, bytes] | None, *, file: str, kind: str) -> SegmentFacts:
    """Return what a Parquet file says of itself, if it is a segment of this version and kind.

    Args:
        metadata: Its key-value metadata.
        file: Where it lies, for the message.
        kind: The kind of rows that is expected.

    Raises:
        ValueError: It is another file, of another version or of another kind.
    """
    said = {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in (metadata or {}).items()}
    if said.get(f"{_PREFIX}format") != FORMAT:
        raise ValueError(f"{file} is a Parquet file, but no segment of a staging store")
    version = said.get(f"{_PREFIX}version")
    if version != str(FORMAT_VERSION):
        raise ValueError(
            f"{file} has version {version} of the segment format; version {FORMAT_VERSION} can be read here"
        )
    found = said.get(f"{_PREFIX}kind")
    if found not in _KINDS or found != kind:
        raise ValueError(f"{file} holds rows of kind {found}, not {kind}")
    return SegmentFacts(found, said.get(f"{_PREFIX}store_id", ""), said.get(f"{_PREFIX}name", ""))


def writer_options(log_prob_columns: tuple[str, ...] = ("log_probs",)) -> dict[str, Any]:
    """Return the options of ``pyarrow.parquet.ParquetWriter`` that every segment is written with.

    Args:
        log_prob_columns: List columns of floats, whose bytes compress better when split into streams.
    """
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": ["row_kind", "rollout_id", "mode"],
        "column_encoding": {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in log_prob_columns},
        "write_statistics": ["rollout_id"],
        "store_schema": True,
        "write_page_checksum": True,
        "version": "2.6",
    }
