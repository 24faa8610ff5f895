"""Which earlier call a model call continues, proved before generation (B41-B51).

The look-up compares conversations, the proof compares tokens; a parent is returned only with both. Everything of this
page is gathered here under its public names.
"""

from __future__ import annotations

from gym_ray.token_id_capture.resolution.call_index import CallIndex, IndexedCall, Unresolved, hashed_items
from gym_ray.token_id_capture.resolution.continuation import stamp_continuation
from gym_ray.token_id_capture.resolution.conversation_cache import ConversationCache
from gym_ray.token_id_capture.resolution.memory_resolver import InMemoryLineageResolver
from gym_ray.token_id_capture.resolution.parent_links import (
    AMBIGUOUS_REASON,
    LOOKUP_ERROR_REASON,
    NO_MATCH_REASON,
    NOT_ATTEMPTED_REASON,
    RESOLVER_UNAVAILABLE_REASON,
    SEEDED_ROOT_REASON,
    LineageMatch,
    LineageResolution,
    LineageResolver,
)
from gym_ray.token_id_capture.resolution.resolvers import (
    CachedLineageResolver,
    FetchedEntries,
    FileLineageResolver,
)

__all__ = [
    "AMBIGUOUS_REASON",
    "LOOKUP_ERROR_REASON",
    "NOT_ATTEMPTED_REASON",
    "NO_MATCH_REASON",
    "RESOLVER_UNAVAILABLE_REASON",
    "SEEDED_ROOT_REASON",
    "CachedLineageResolver",
    "CallIndex",
    "ConversationCache",
    "FetchedEntries",
    "FileLineageResolver",
    "InMemoryLineageResolver",
    "IndexedCall",
    "LineageMatch",
    "LineageResolution",
    "LineageResolver",
    "Unresolved",
    "hashed_items",
    "stamp_continuation",
]
