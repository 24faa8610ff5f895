"""The columns of token records, and of what is said about calls without a record, in segments.

A record is its three columns of numbers, four columns that tell it from others, and ``entry_json`` for everything else
that it holds. Only ``rollout_id`` has statistics, and rows are sorted by it: a reader moves the token columns of no row
group that cannot hold its rollout.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

__all__ = ["EVENTS_SCHEMA", "IDENTITY_COLUMNS", "LOG_PROB_COLUMNS", "TOKENS_SCHEMA"]

LOG_PROB_COLUMNS: Final = ("log_probs", "log_probs_wide")

TOKENS_SCHEMA: Final = pa.schema(
    [
        pa.field("rollout_id", pa.string(), nullable=False),
        pa.field("model_call_id", pa.string(), nullable=False),
        pa.field("record_digest", pa.binary(32), nullable=False),  # of all but created_at: equal records have one (W24)
        pa.field("created_at", pa.float64(), nullable=False),
        # Of each pair of columns one is null: the wide one has what the narrow one cannot hold exactly.
        pa.field("prompt_token_ids", pa.list_(pa.int32())),
        pa.field("prompt_token_ids_wide", pa.list_(pa.uint64())),
        pa.field("generation_token_ids", pa.list_(pa.int32())),
        pa.field("generation_token_ids_wide", pa.list_(pa.uint64())),
        pa.field("log_probs", pa.list_(pa.float32())),
        pa.field("log_probs_wide", pa.list_(pa.float64())),
        pa.field("entry_json", pa.large_string(), nullable=False),
    ]
)

IDENTITY_COLUMNS: Final = ("rollout_id", "model_call_id", "record_digest", "created_at")
"""What tells one record from another; they lie next to each other."""

EVENTS_SCHEMA: Final = pa.schema(
    [
        pa.field("rollout_id", pa.string(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("model_call_id", pa.string(), nullable=False),  # empty where it is about no call
        pa.field("created_at", pa.float64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.large_string(), nullable=False),
    ]
)
