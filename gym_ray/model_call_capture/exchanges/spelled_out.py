"""What a stream spells out over several events: the texts that its deltas make when they are put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gym_ray.dialects.sse import parse_objects

__all__ = ["delta_texts"]

_PLACE = ("type", "index", "output_index", "content_index", "summary_index")
_DELTA = "delta"


def delta_texts(raw: str) -> Iterator[list[str]]:
    """Yield, for each place that deltas of a stream add text to, the pieces in their order; never raises.

    Args:
        raw: The stream as a record keeps it.
    """
    places: dict[tuple[Any, ...], list[str]] = {}
    for payload in parse_objects(raw.encode("utf-8", "surrogatepass")):
        where = tuple(_scalar(payload.get(name)) for name in _PLACE)
        for path, text in _texts(payload):
            if _DELTA in path:
                places.setdefault((where, path), []).append(text)
    yield from places.values()


def _texts(payload: Mapping[str, Any]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield every text of a payload with the names that lead to it; a list's member goes by its own index."""
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), payload)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, dict):
            inner = (*path, _scalar(value.get("index"))) if path else path
            waiting.extend(((*inner, name), item) for name, item in value.items())
        elif isinstance(value, list):
            waiting.extend(((*path, number), item) for number, item in enumerate(value))


def _scalar(value: object) -> object:
    return value if isinstance(value, str | int) else None
