"""Finds call ids that occur more than once among any number of lines, in 12 bytes a call."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from pathlib import Path

__all__ = ["RepeatedIds"]


class RepeatedIds:
    """Takes the ids of all files, file by file, and says which of them are worth a second look.

    Only hashes are kept: an id that is returned may be a mere collision, so whoever asks compares the ids themselves.
    """

    def __init__(self) -> None:
        self._hashes = array("Q")
        self._owners = array("I")
        self._files: list[Path] = []

    def begin(self, file: Path) -> None:
        """Say whose ids follow."""
        self._files.append(file)

    def add(self, call_id: str) -> None:
        """Take one id."""
        self._hashes.append(_hash_of(call_id))
        self._owners.append(len(self._files) - 1)

    def suspects(self) -> tuple[frozenset[int], list[Path]]:
        """Return the hashes that occur more than once, and the files that hold them, in order."""
        repeated = frozenset(_repeated(self._hashes))
        if not repeated:
            return repeated, []
        owners = {owner for value, owner in zip(self._hashes, self._owners, strict=True) if value in repeated}
        return repeated, [self._files[owner] for owner in sorted(owners)]

    @staticmethod
    def is_suspect(call_id: str, suspects: frozenset[int]) -> bool:
        """Return whether an id's hash is among the suspects."""
        return _hash_of(call_id) in suspects


def _hash_of(call_id: str) -> int:
    digest = hashlib.blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _repeated(hashes: Sequence[int]) -> list[int]:
    import numpy as np  # only here: whoever merely writes captures does not load it

    ordered = np.sort(np.asarray(hashes, dtype=np.uint64))
    repeated: list[int] = np.unique(ordered[1:][ordered[1:] == ordered[:-1]]).tolist()
    return repeated
