"""Adds a stream up to the answer it carried, whatever the dialect.

A view on bytes that are kept elsewhere: it may be partial, it may be missing, but it never raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES, chat, messages, responses
from gym_ray.dialects.sse import iterate_objects

__all__ = ["reassemble"]

_BUILDERS = {CHAT: chat.reassemble, MESSAGES: messages.reassemble, RESPONSES: responses.reassemble}


def reassemble(dialect: str, body: bytes) -> dict[str, Any] | None:
    """Reassemble the bytes of a stream, whole or cut off (A84-A98).

    Args:
        dialect: ``responses``, ``chat`` or ``messages``.
        body: The stream's bytes.

    Returns:
        The answer as an object of the dialect, as far as it came; None when nothing can be rebuilt.
    """
    try:
        return _BUILDERS[dialect](_typed(body))
    except Exception:  # noqa: BLE001 - A98: the call is recorded with its raw bytes, whatever an upstream sent
        return None


def _typed(body: bytes) -> Iterator[dict[str, Any]]:
    """Yield the payloads; one that does not say its type gets the name of its event."""
    for name, payload in iterate_objects(body):
        if name and "type" not in payload:
            payload["type"] = name
        yield payload
