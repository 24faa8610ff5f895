"""From a request body to its items and their hashes (B25-B27)."""

from __future__ import annotations

import copy
from typing import Any

from gym_ray.token_id_capture.fingerprint import ConversationHasher, assistant_fingerprint, conversation_digest
from gym_ray.token_id_capture.request_items import request_items


def test_vector(case: dict[str, Any]) -> None:
    before = copy.deepcopy(case["body"])
    items = request_items(case["body"])
    assert items == case["items"]
    assert assistant_fingerprint(items) == case["fingerprint"]
    assert conversation_digest(items) == case["digest"]
    hasher = ConversationHasher()
    hasher.feed(items)
    assert (hasher.fingerprint(), hasher.digest(), hasher.item_count) == (
        case["fingerprint"],
        case["digest"],
        len(case["items"]),
    )
    assert case["body"] == before
