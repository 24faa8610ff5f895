"""Reads parts and puts payloads together again.

Every line proves itself: its name is the hash of its bytes. So a part is right or refused, never silently another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import DamagedRecordError
from gym_ray.evidence.compact.grammar import LIKE, LIST, MORE, NAME_LENGTH, PART, RAW, looks_encoded, name_of

__all__ = ["PartReader", "Parts", "merged_parts"]

_VALUE_AT = NAME_LENGTH + 4  # behind {" and the name and ":
_DEEPEST = 120


class Parts:
    """The parts of one rollout, by name; read-only.

    Attributes:
        place: The file they come from, for messages.
    """

    def __init__(self, encoded: dict[str, Any], place: str = "its parts") -> None:
        self._encoded = encoded
        self.place = place

    @classmethod
    def parse(cls, data: bytes, place: str = "its parts") -> Parts:
        """Read the content of a parts file.

        Args:
            data: One part a line.
            place: The file, for messages.

        Raises:
            DamagedRecordError: A line is no part, or its bytes are not the ones that its name was made from.
        """
        return cls({name: exact_json.loads(content) for name, content in _contents(data, place)}, place)

    def __len__(self) -> int:
        return len(self._encoded)

    def __contains__(self, name: str) -> bool:
        return name in self._encoded

    def encoded(self, name: str) -> Any:
        """Return a part in its encoded spelling.

        Raises:
            KeyError: There is no such part.
        """
        return self._encoded[name]


def merged_parts(*contents: bytes) -> bytes:
    """Return one parts file that holds what all of these hold, in order; damaged lines of it stay out.

    A record that refers to any of them can be read with it.
    """
    lines: dict[bytes, None] = {}
    for content in contents:
        for line in content.split(b"\n"):
            if _proven(line) is not None:
                lines[line] = None
    return b"".join(line + b"\n" for line in lines)


def _proven(line: bytes) -> tuple[str, bytes] | None:
    if line[:2] != b'{"' or line[_VALUE_AT - 2 : _VALUE_AT] != b'":' or line[-1:] != b"}":
        return None
    content = line[_VALUE_AT:-1]
    name = name_of(content)
    return (name, content) if line[2 : 2 + NAME_LENGTH] == name.encode("ascii") else None


def _contents(data: bytes, place: str) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line:
            continue
        part = _proven(line)
        if part is None:
            raise DamagedRecordError(
                f"{place}, line {number}: no part, or not the bytes that its name was made from; "
                "join the rollout again from its capture (`gym-ray eval rejoin`)"
            )
        yield part


class PartReader:
    """Decodes the payloads of one rollout. Equal payloads may be one object; whoever changes one changes all.

    Args:
        parts: The rollout's parts.
        held: Texts that the record itself keeps.
    """

    def __init__(self, parts: Parts, held: Iterable[str] = ()) -> None:
        self._parts = parts
        self._held_texts: Iterable[str] | None = held
        self._held: dict[str, str] = {}
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
        except (TypeError, ValueError, AttributeError) as error:
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
            if len(chain) > len(self._parts):
                raise DamagedRecordError(f"{self._parts.place}: lists begin with each other")
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
        if name in self._parts:
            return self._parts.encoded(name)
        if self._held_texts is not None:
            self._held = {name_of(exact_json.dumps(text)): text for text in self._held_texts}
            self._held_texts = None
        if name not in self._held:
            raise DamagedRecordError(
                f"{self._parts.place}: part {name} is missing; join the rollout again from its capture "
                "(`gym-ray eval rejoin`)"
            )
        return self._held[name]
