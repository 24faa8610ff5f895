"""How a payload is spelled once its parts are taken out.

An encoded value is JSON in which an object with one member of these names stands for something else; every other value
stands for itself. A payload that happens to look like such an object is kept verbatim.

====================================  ================================================================================
``{"$part": name}``                   the value of that part
``{"$list": [name, ...]}``            a list of those parts
``{"$more": [base, keep, [name]]}``   the first ``keep`` items of the list in part ``base``, then those parts
``{"$like": [base, {key: value}]}``   the object in part ``base``, with these members replaced, in its order
``{"$raw": value}``                   the value itself, nothing in it is encoded
====================================  ================================================================================

A parts file holds the encoded values, one a line, and no names: a part's name is the blake2b-128 of its line in
URL-safe base64, and a reference gives its first eight characters. A line whose name begins like another one's gets
spaces at its end until it does not. Whoever reads hashes the lines; so a line that was changed is no part any more, and
where two lines of a merged file have one beginning, neither is taken for the other.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

__all__ = ["LIKE", "LIST", "MORE", "PART", "RAW", "SHORT", "looks_encoded", "name_of"]

PART, LIST, MORE, LIKE, RAW = "$part", "$list", "$more", "$like", "$raw"
SHORT = 8
"""Characters of a name that a reference gives: 48 bits."""
_SPELLINGS = frozenset((PART, LIST, MORE, LIKE, RAW))


def name_of(content: bytes) -> str:
    """Return the whole name of a part with these bytes."""
    digest = hashlib.blake2b(content, digest_size=16).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def looks_encoded(value: dict[str, Any]) -> bool:
    """Return whether an object would be read as a spelling of something else."""
    return len(value) == 1 and next(iter(value)) in _SPELLINGS
