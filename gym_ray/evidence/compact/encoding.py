"""Takes payloads apart: every distinct item, long text and list of items becomes a part, once.

Two values are the same only if their JSON bytes are: 1, 1.0 and true differ, and so does another order of members. The
work is one serialisation of what is given, and the output grows with what is new in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gym_ray import exact_json
from gym_ray.evidence.compact.grammar import LIKE, LIST, MORE, PART, RAW, SHORT, looks_encoded, name_of

__all__ = ["PartWriter", "long_texts"]

_LONG_TEXT = 96
"""Characters from which on a text is a part of its own."""
_SMALL_OBJECT, _SMALL_LIST = 64, 96
"""Bytes up to which an object or a list stays where it is."""
_SHORT_LIST = 4
"""Items up to which a list is spelled where it stands, and is no part that others can begin with."""
_DEEPEST = 48
"""Levels that are looked into; what nests deeper stays whole, so that no payload exhausts the stack."""
_PLAIN = (int, float, bool, type(None))


def long_texts(value: Any) -> set[str]:
    """Return the texts in a value that are long enough to be parts; any depth can be asked about."""
    found: set[str] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            if len(item) >= _LONG_TEXT:
                found.add(item)
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list) and not (item and type(item[0]) in _PLAIN):  # token ids: long, and no text
            stack.extend(item)
    return found


class PartWriter:
    """Encodes the payloads of one rollout and collects their parts.

    Every value that it is given must live, unchanged, as long as the writer.

    Args:
        held: Texts that the record keeps anyway; a part with such a text is named and not written.
    """

    def __init__(self, held: Iterable[str] = ()) -> None:
        self._held = frozenset(held)
        self._lines: list[bytes] = []
        self._names: dict[str, str] = {}  # what references call a part: its whole name
        self._written: set[str] = set()
        self._texts: dict[str, str] = {}
        self._items: dict[bytes, str] = {}
        self._known: dict[int, str] = {}  # id of an item, and of a list, that came before: its name
        self._lists: dict[tuple[str, ...], str] = {}
        self._prefixes = _Prefixes()
        self._models: dict[tuple[str, ...], tuple[str, dict[str, bytes]]] = {}

    def content(self) -> bytes:
        """Return the parts so far, one encoded value a line."""
        return b"".join(self._lines)

    def payload(self, value: Any) -> Any:
        """Return a payload in its encoded spelling."""
        if isinstance(value, dict) and not looks_encoded(value):
            return self._object({key: self._member(member) for key, member in value.items()})
        return self._member(value)

    def _object(self, members: dict[str, Any]) -> Any:
        """Spell an object by what differs from the first one with the same members."""
        texts = {key: exact_json.dumps(member) for key, member in members.items()}
        if sum(map(len, texts.values())) + sum(map(len, texts)) <= _SMALL_OBJECT:
            return members
        keys = tuple(members)
        model = self._models.get(keys)
        if model is None:
            name = self._put(exact_json.dumps(members))
            self._models[keys] = (name, texts)
            return {PART: name}
        name, first = model
        changed = {key: member for key, member in members.items() if texts[key] != first[key]}
        return {LIKE: [name, changed]} if changed else {PART: name}

    def _member(self, value: Any) -> Any:
        if isinstance(value, dict) and not looks_encoded(value):  # such as usage, which has the same members each time
            return self._object({key: self._nested(member, 1) for key, member in value.items()})
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            is_small = len(value) <= 2 and len(exact_json.dumps(value)) <= _SMALL_LIST
            if not is_small:
                return self._list(value)
        return self._nested(value, 0)

    def _list(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        known = self._known.get(id(items))
        if known is not None:
            return {PART: known}
        names = tuple([self._item(item) for item in items])
        if len(names) <= _SHORT_LIST:
            return {LIST: list(names)}
        name = self._lists.get(names)
        if name is None:
            base, keep = self._prefixes.longest(names)
            spelled = {MORE: [base, keep, names[keep:]]} if keep > 2 else {LIST: names}
            name = self._put(exact_json.dumps(spelled))
            self._lists[names] = name
            self._prefixes.add(names, name)
        self._known[id(items)] = name
        return {PART: name}

    def _item(self, item: dict[str, Any]) -> str:
        name = self._known.get(id(item))
        if name is None:
            whole = exact_json.dumps(item)
            name = self._items.get(whole)
            if name is None:
                name = self._put(exact_json.dumps(self._nested(item, 0)))
                self._items[whole] = name
            self._known[id(item)] = name
        return name

    def _nested(self, value: Any, level: int) -> Any:
        if isinstance(value, str):
            return self._text(value) if len(value) >= _LONG_TEXT else value
        if isinstance(value, dict):
            if level >= _DEEPEST or looks_encoded(value):
                return {RAW: value}
            return {key: self._nested(member, level + 1) for key, member in value.items()}
        if isinstance(value, list):
            if level >= _DEEPEST:
                return {RAW: value}
            return [item if type(item) in _PLAIN else self._nested(item, level + 1) for item in value]
        return value

    def _text(self, text: str) -> dict[str, str]:
        name = self._texts.get(text)
        if name is None:
            content = exact_json.dumps(text)
            name = self._texts[text] = self._put(content, is_held=text in self._held)
        return {PART: name}

    def _put(self, content: bytes, *, is_held: bool = False) -> str:
        """Return what references call this content; it is written unless it is there, or held under that name."""
        line = content
        while self._names.setdefault((whole := name_of(line))[:SHORT], whole) != whole:
            line += b" "
        if whole not in self._written and not (is_held and line == content):
            self._written.add(whole)
            self._lines.append(line + b"\n")
        return whole[:SHORT]


class _Prefixes:
    """Finds, for a list of names, an earlier one with the longest common beginning; linear in the list."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, str], int] = {}
        self._owners: list[str] = [""]

    def longest(self, names: tuple[str, ...]) -> tuple[str, int]:
        """Return the name of that list and how many items they share; ("", 0) where none begins alike."""
        node = depth = 0
        for name in names:
            following = self._nodes.get((node, name))
            if following is None:
                break
            node, depth = following, depth + 1
        return self._owners[node], depth

    def add(self, names: tuple[str, ...], owner: str) -> None:
        """Make a list findable."""
        node = 0
        for name in names:
            following = self._nodes.get((node, name))
            if following is None:
                following = self._nodes[node, name] = len(self._owners)
                self._owners.append(owner)
            node = following
