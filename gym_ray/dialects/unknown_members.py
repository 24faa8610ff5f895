"""Keeps the members of stream events that no rule of a dialect names.

An answer put together from a stream holds what a whole answer would hold, as far as that can be told without knowing
the member: lists grow, objects are merged, anything else is replaced by a later word. Null says nothing.
"""

from __future__ import annotations

from typing import Any

__all__ = ["merge_member"]

_DEEPEST_MERGE = 8
"""Levels of objects that are merged member by member; what lies deeper is replaced as a whole."""


def merge_member(into: dict[str, Any], name: str, value: Any, levels: int = _DEEPEST_MERGE) -> None:
    """Merge one member into an object; ``value`` then belongs to the object."""
    if value is None:
        return
    known = into.get(name)
    if isinstance(known, list) and isinstance(value, list):
        known.extend(value)
    elif levels and isinstance(known, dict) and isinstance(value, dict):
        for inner, item in value.items():
            merge_member(known, inner, item, levels - 1)
    else:
        into[name] = value
