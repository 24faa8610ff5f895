"""Packs what goes to an actor into bytes: Ray takes them as they are, and every other value through a slow pickler."""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["packed", "unpacked"]


def packed(*parts: object) -> bytes:
    """Return values as bytes for an argument of an actor's method; they must be of modules that both sides import."""
    return pickle.dumps(parts, pickle.HIGHEST_PROTOCOL)


def unpacked(data: bytes) -> tuple[Any, ...]:
    """Return what :func:`packed` was given. Give it only what came from an actor of the same run."""
    parts: tuple[Any, ...] = pickle.loads(data)  # noqa: S301 - from the run's own collector
    return parts
