"""Refusals of a vLLM server, as a client may see them: it repeats the request that it refuses, token ids and all."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["without_ids"]

_ID_LIST: Final = re.compile(rb"\[\s*+\d++(?:\s*+,\s*+\d++){3,}+[^\]]{0,9}(?:\]|\Z)")
"""Four numbers or more in brackets, cut off or not; fewer may be a range that the server names."""

_ID: Final = re.compile(rb"""(["']token_id\\?["']\s*+:\s*+)\d++""")
"""The id beside a log probability."""


def without_ids(text: bytes) -> bytes:
    """Return a refusal without the lists of numbers and the ids in it, whether they are JSON or quoted in a message."""
    return _ID.sub(rb"\1null", _ID_LIST.sub(b"[]", text))
