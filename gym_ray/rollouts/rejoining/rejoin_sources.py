"""Finds again what a reply itself brought: its line in the run's sources, by rollout id, at 16 bytes a line."""

from __future__ import annotations

import hashlib
import os
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from gym_ray import exact_json
from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.record_reading import lines_between

__all__ = ["Sources"]


class Sources:
    """The sources of one run. Close it, or use it as a context manager.

    Attributes:
        complete: Every line could be read; then a rollout without a line brought nothing. False also where the run,
            such as a peer's, kept no sources.

    Args:
        path: The file; it may be missing.

    Raises:
        StorageError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        kept = self.complete = path.exists()
        hashes, places = array("Q"), array("Q")
        if kept:
            for offset, line in lines_between(path, 0, path.stat().st_size):
                name = (exact_json.loads_object(line) or {}).get("rollout_id") if line.strip() else ""
                if not isinstance(name, str):
                    self.complete = False
                elif name:
                    hashes.append(_hash(name))
                    places.append(offset)
        self._hashes, self._places = np.array(hashes, np.uint64), np.array(places, np.uint64)
        order = np.argsort(self._hashes, kind="stable")
        self._hashes, self._places = self._hashes[order], self._places[order]
        if kept:
            self._descriptor = _opened(path)  # last, so that what goes wrong before leaves nothing open

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; safe to repeat."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def find(self, rollout_id: str) -> dict[str, Any] | None:
        """Return what a rollout's reply brought, by field; None when no line says. The last line counts."""
        wanted = np.uint64(_hash(rollout_id))
        first, behind = np.searchsorted(self._hashes, wanted, "left"), np.searchsorted(self._hashes, wanted, "right")
        for place in reversed(self._places[first:behind].tolist()):
            with os.fdopen(os.dup(self._descriptor), "rb") as file:
                file.seek(place)
                source = exact_json.loads_object(file.readline()) or {}
            if source.pop("rollout_id", None) == rollout_id:
                return source
        return None


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error}") from error


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
