"""Stamps a record with what later requests that continue it are recognised by (B41, W31, W33)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gym_ray.token_id_capture.extras import EXTRAS_MEMBER, CallExtras
from gym_ray.token_id_capture.fingerprint import FINGERPRINT_VERSION
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.resolution.call_index import hashed_items

__all__ = ["stamp_continuation"]


def stamp_continuation(entry: TokenEntry, request_items: Sequence[object]) -> TokenEntry:
    """Set the continuation fields of a record and return it; without them no later call can find it (B41).

    Its member ``gym_ray`` gains the number of model-authored items (W31), the strict digest, and the digest of a text
    ``input`` (W33). Items that come with their hashes are not hashed again, only the record's own output is (W11).

    Args:
        entry: The record, with its output items; unchanged if this raises.
        request_items: The items of its request.

    Raises:
        ValueError: An item cannot be hashed (B31-B33).
    """
    hashed = hashed_items(request_items)
    context = hashed.hasher
    whole = context.copy()
    whole.feed(entry.output_items)
    extras = replace(
        CallExtras.of((entry.model_extra or {}).get(EXTRAS_MEMBER)),
        model_items=whole.model_items,
        strict_context_digest=context.strict_digest(),
        text_input_digest=hashed.text_input_digest,
    )
    entry.continuation_fingerprint = whole.fingerprint()
    entry.continuation_context_len = context.item_count
    entry.continuation_context_digest = context.digest()
    entry.fingerprint_version = FINGERPRINT_VERSION
    setattr(entry, EXTRAS_MEMBER, extras.to_json())
    return entry
