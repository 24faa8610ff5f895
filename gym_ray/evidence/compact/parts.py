"""Reads parts and puts payloads together again.

A part is found by the hash of its line. So a part is right or missing, and never silently another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import DamagedRecordError
from gym_ray.evidence.compact.grammar import LIKE, LIST, MORE, PART, RAW, SHORT, looks_encoded, name_of

__all__ = ["PartReader", "Parts", "merged_parts"]

_DEEPEST = 120


class Parts:
    """The parts of one rollout, by name; read-only.

    Args:
        lines: One encoded value each; a line that was damaged is a part that nobody refers to.
        place: The file they come from, for messages.
    """

    def __init__(self, lines: Iterable[bytes] = (), place: str = "its parts") -> None:
        self._lines: dict[str, list[bytes]] = {}
        self.place = place
        for line in dict.fromkeys(lines):
            self._lines.setdefault(name_of(line)[:SHORT], []).append(line)

    @classmethod
    def parse(cls, data: bytes, place: str = "its parts") -> Parts:
        """Read the content of a parts file.

        Args:
            data: One part a line.
            place: The file, for messages.
        """
        return cls(filter(None, data.split(b"\n")), place)

    def encoded(self, name: str) -> Any:
        """Return a part in its encoded spelling.

        Args:
            name: As references spell it.

        Raises:
            KeyError: There is no such part.
            DamagedRecordError: There are several whose names begin so.
        """
        found = self._lines[name]
        if len(found) > 1:
            raise DamagedRecordError(f"{self.place}: {name} names {len(found)} parts; nobody knows which one is meant")
        return exact_json.loads(found[0])


def merged_parts(*contents: bytes) -> bytes:
    """Return one parts file that holds what all of these hold, in order.

    A record that refers to any of them can be read with it.
    """
    lines = dict.fromkeys(line for content in contents for line in content.split(b"\n") if line)
    return b"".join(line + b"\n" for line in lines)


class PartReader:
    """Decodes the payloads of one rollout. Equal payloads may be one object; whoever changes one changes all.

    Args:
        parts: The rollout's parts.
        held: Texts that the record itself keeps.
    """

    def __init__(self, parts: Parts, held: Iterable[str] = ()) -> None:
        self._parts = parts
        self._held_texts = held
        self._held: Parts | None = None
        self._values: dict[str, Any] = {}

    def payload(self, value: Any, level: int = 0) -> Any:
        """Return what an encoded value stands for.

        Raises:
            DamagedRecordError: A part is missing, or the spelling is none of ours.
        """
        if level > _DEEPEST:
            raise DamagedRecordError(f"{self._parts.place}: parts nest more than {_DEEPEST} levels deep")
        if isinstance(value, dict):
            if looks_encoded(value):
                return self._spelled(value, level)
            return {key: self.payload(member, level + 1) for key, member in value.items()}
        if isinstance(value, list):
            return [self.payload(item, level + 1) if isinstance(item, dict | list) else item for item in value]
        return value

    def _spelled(self, value: dict[str, Any], level: int) -> Any:
        ((spelling, content),) = value.items()
        try:
            if spelling == RAW:
                return content
            if spelling == PART:
                return self._value(content, level)
            if spelling == LIKE:
                name, changed = content
                return self._value(name, level) | {key: self.payload(item, level + 1) for key, item in changed.items()}
            return self._list(value, level)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, DamagedRecordError):
                raise
            raise DamagedRecordError(f"{self._parts.place}: {spelling} is not spelled as a payload is") from error

    def _value(self, name: str, level: int) -> Any:
        if name not in self._values:
            self._values[name] = self.payload(self._encoded(name), level + 1)
        return self._values[name]

    def _list(self, value: dict[str, Any], level: int) -> list[Any]:
        """Build a list from the nearest ancestor that is built already; chains may be as long as the rollout."""
        chain: list[tuple[str | None, int, list[str]]] = []
        built: list[Any] = []
        name: str | None = None
        while MORE in value:
            base, keep, names = value[MORE]
            chain.append((name, keep, names))
            name = base
            if base in self._values:
                built = self._values[base]
                break
            value = self._encoded(base)
        else:
            built = [self._value(item, level) for item in value[LIST]]
            if name is not None:
                self._values[name] = built
        for own_name, keep, names in reversed(chain):
            built = built[:keep] + [self._value(item, level) for item in names]
            if own_name is not None:
                self._values[own_name] = built
        return built

    def _encoded(self, name: str) -> Any:
        if not isinstance(name, str):
            raise TypeError("a name is text")
        try:
            return self._parts.encoded(name)
        except KeyError:
            pass
        if self._held is None:
            self._held = Parts(map(exact_json.dumps, self._held_texts), "the record")
        try:
            return self._held.encoded(name)
        except KeyError:
            raise DamagedRecordError(
                f"{self._parts.place}: part {name} is missing: its line was changed, or it is another record's file; "
                "restore it, or join the rollout again from its capture (`gym-ray eval rejoin`)"
            ) from None
