"""A streamed request is served as far as it is understood: newer parts are left out, and each loss is told (A148-A152).

Harnesses stream, and they are newer than any schema; a plain request with the same parts is a 422. Everything here
makes new objects along the changed path and never changes the caller's body.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gym_ray.dialects.conversion.schema import BodySchema, body_problems, invalid, placed
from gym_ray.dialects.conversion.schema.responses import INNER_TOOL_CHECK, TOOL_CHECK
from gym_ray.dialects.conversion.schema.shapes import Check, Problem, problems

__all__ = ["hoisted", "sanitised"]

_log = logging.getLogger(__name__)

_MOST_ROUNDS = 16  # a long list shows its unknown fields 512 elements at a time
_MOST_FOUND = 100
_MOST_DROPPED = 1000  # what loses more than this is no conversation any more
_MOST_TOLD = 8
_LONGEST_TOLD = 300  # characters
_STREAM_FIELDS = frozenset({"stream", "stream_options"})
_HOISTED_ROLES = frozenset({"system", "developer"})

_Place: TypeAlias = tuple[int | str, ...]


def sanitised(schema: BodySchema, body: Mapping[str, Any], extensions: frozenset[str]) -> dict[str, Any]:
    """Return a streamed body that keeps to its schema; its namespaces are not yet flattened.

    Unknown fields go, at the top and inside; of a Responses body also the items and tools that break the schema in any
    other way. A warning names each item, tool and provider field that went.

    Raises:
        InvalidRequestError: Something else is wrong with it, or more than 1,000 items and tools would go.
    """
    known = schema.fields | extensions
    losses = _Losses(
        dropped=[f"{name} (served to plain requests only)" for name in sorted(body.keys() & schema.plain_only)],
        pruned=sorted(ascii(name)[1:-1] for name in body.keys() - known - schema.plain_only - _STREAM_FIELDS),
    )
    kept = {name: value for name, value in body.items() if name in known - _STREAM_FIELDS}
    cleaner = _Cleaner(schema.drops_elements, losses)
    for name, check in ((schema.elements, schema.element), ("tools", schema.tool)):
        if isinstance(kept.get(name), list):
            kept[name] = list(cleaner.cleaned(kept[name], check, (name,)))
    pruned, wrong = _pruned(lambda value: body_problems(schema.outer, value, extensions), kept, (), losses)
    if cleaner.found or wrong:
        raise invalid(cleaner.found + wrong)
    losses.tell()
    return dict(pruned)


def hoisted(body: dict[str, Any]) -> dict[str, Any]:
    """Return a Responses body whose leading system and developer texts stand in ``instructions`` (A151).

    A leading message that holds anything but text ends the run and stays, so that nothing is lost.
    """
    items = body.get("input")
    if not isinstance(items, list):
        return body
    texts: list[str] = []
    for item in items:
        text = _leading_text(item)
        if text is None:
            break
        texts.append(text)
    if not texts:
        return body
    said = [text for text in (body.get("instructions"), *texts) if text]
    joined = {"instructions": "\n\n".join(said)} if said else {}
    return {**body, "input": items[len(texts) :], **joined}


def _leading_text(item: Mapping[str, Any]) -> str | None:
    if item.get("type") not in (None, "message") or item.get("role") not in _HOISTED_ROLES:
        return None
    content = item["content"]
    if isinstance(content, str):
        return content
    if any(part["type"] != "input_text" for part in content):
        return None
    return "".join(part["text"] for part in content)


@dataclass(slots=True)
class _Losses:
    """What a request loses on its way."""

    dropped: list[str] = field(default_factory=list)
    pruned: list[str] = field(default_factory=list)

    def tell(self) -> None:
        """Log what went: whole parts as a warning, unknown fields, which every newer harness has, as information."""
        if self.dropped:
            _log.warning("streamed request: dropped %s", _some(self.dropped))
        if self.pruned:
            _log.info("streamed request: unknown fields left out: %s", _some(self.pruned))


def _some(parts: Sequence[str]) -> str:
    more = len(parts) - _MOST_TOLD
    return "; ".join(part[:_LONGEST_TOLD] for part in parts[:_MOST_TOLD]) + (f"; and {more} more" if more > 0 else "")


class _Cleaner:
    """Looks at elements one by one: keeps the good, prunes the newer, and drops or reports the wrong."""

    def __init__(self, drops: bool, losses: _Losses) -> None:
        self._drops = drops
        self._losses = losses
        self.found: list[Problem] = []

    def cleaned(self, elements: Sequence[Any], check: Check, place: _Place) -> Iterator[Any]:
        """Yield what stays of ``elements``."""
        for index, element in enumerate(elements):
            here = (*place, index)
            opened = self._opened(element, here) if self._drops else element
            pruned, wrong = _pruned(lambda value: problems(check, value), opened, here, self._losses)
            if not wrong:
                yield pruned
            elif self._drops:
                self._losses.dropped.append(_said(here, wrong[0]))
                if len(self._losses.dropped) > _MOST_DROPPED:
                    raise invalid(placed(wrong, *here))
            elif len(self.found) < _MOST_FOUND:
                self.found += placed(wrong, *here)

    def _opened(self, element: Any, place: _Place) -> Any:
        """Clean the tools inside a namespace or a carrier; one bad tool must not cost the others."""
        if not isinstance(element, dict) or not isinstance(element.get("tools"), list):
            return element
        inside = (*place, "tools")
        if element.get("type") == "namespace":
            return {**element, "tools": list(self.cleaned(element["tools"], INNER_TOOL_CHECK, inside))}
        if element.get("type") == "additional_tools":
            tools = self.cleaned(element["tools"], TOOL_CHECK, inside)
            return {**element, "tools": list(self._functions(tools, inside))}
        return element

    def _functions(self, tools: Iterator[dict[str, Any]], place: _Place) -> Iterator[dict[str, Any]]:
        """Yield the function tools of a carrier, plain or in a namespace; others are no use there (A151)."""
        for tool in tools:
            if tool["type"] == "namespace":
                yield {**tool, "tools": list(self._functions(iter(tool["tools"]), place))}
            elif tool["type"] == "function":
                yield tool
            else:
                self._losses.dropped.append(f"{_path(place)}: a {tool['type']!r} tool in an 'additional_tools' item")


def _pruned(
    check: Callable[[Any], list[Problem]], value: Any, place: _Place, losses: _Losses
) -> tuple[Any, list[Problem]]:
    """Return ``value`` without the fields that its schema does not know, and what else is wrong with it (A152)."""
    unknown: list[str] = []
    for _ in range(_MOST_ROUNDS):
        found = check(value)
        wrong = [one for one in found if one["type"] != "extra_forbidden"]
        if wrong or not found:
            losses.pruned += unknown
            return value, wrong
        unknown += [_path((*place, *one["loc"])) for one in found]
        value = _without(value, [one["loc"] for one in found])
    return value, check(value)


def _without(value: Any, places: Sequence[_Place]) -> Any:
    """Return ``value`` without the members at ``places``; only the objects on the way to them are copied."""
    inside: dict[int | str, list[_Place]] = {}
    for first, *rest in places:
        inside.setdefault(first, []).append(tuple(rest))
    copy = value.copy()
    for key, rests in inside.items():
        if () in rests:
            del copy[key]
        else:
            copy[key] = _without(value[key], rests)
    return copy


def _said(place: _Place, one: Problem) -> str:
    return f"{_path((*place, *one['loc']))}: {one['msg']}"


def _path(place: _Place) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{ascii(part)[1:-1]}" for part in place)
    return text.removeprefix(".")
