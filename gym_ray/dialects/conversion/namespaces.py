"""Tools in namespaces, for engines that know only flat names: there as ``<namespace>__<name>``, back as they were.

A flat name that two tools would share is refused (W23): the answer's call could not be given back to the right one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gym_ray.dialects.conversion.schema import invalid, problem

__all__ = ["NamespaceMap", "flatten", "restore_names"]

_CALLS = frozenset({"function_call", "custom_tool_call"})
_NAMED_TOOLS = frozenset({"function", "custom"})
_MOST_TOLD = 8
_CARRIER = "additional_tools"


@dataclass(frozen=True, slots=True)
class NamespaceMap:
    """What became of namespaced tools.

    Attributes:
        names: Flat name -> (namespace, name).
    """

    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether any tool was flattened."""
        return bool(self.names)


def flatten(body: dict[str, Any]) -> tuple[dict[str, Any], NamespaceMap]:
    """Return a Responses body that keeps to the schema with every namespace flattened (A150, A151, W23).

    Namespaced tools stand where their namespace stood; tools of ``additional_tools`` items move to the end of
    ``tools``; a later tool of the same namespace and name replaces the earlier; calls in ``input`` and ``tool_choice``
    take the flat names. ``body`` is not changed.

    Raises:
        InvalidRequestError: Two tools, or a tool and a call of another, get one name; ``tool_choice`` fits several.
    """
    items = body["input"] if isinstance(body.get("input"), list) else []
    table = _ToolTable()
    table.add_all(body.get("tools") or (), moved=False)
    carriers = [item for item in items if _is_carrier(item)]
    for carrier in carriers:
        table.add_all(carrier.get("tools") or (), moved=True)
    flat = dict(body)
    if table.changed:
        flat["tools"] = table.tools
    if carriers or any(_has_namespace(item) for item in items):
        flat["input"] = [table.renamed(item) for item in items if not _is_carrier(item)]
    if isinstance(body.get("tool_choice"), dict):
        flat["tool_choice"] = table.chosen(body["tool_choice"])
    return flat, NamespaceMap(table.names)


def restore_names(answer: Mapping[str, Any], namespaces: NamespaceMap) -> dict[str, Any]:
    """Return a Responses answer in which calls of flattened tools have their namespace and short name again (A153)."""
    output = answer.get("output")
    if not namespaces or not isinstance(output, list):
        return dict(answer)
    return {**answer, "output": [_restored(item, namespaces.names) for item in output]}


def _restored(item: Any, names: Mapping[str, tuple[str, str]]) -> Any:
    if _kind(item) not in _CALLS or not isinstance(item.get("name"), str):
        return item
    known = names.get(item["name"])
    return item if known is None else {**item, "namespace": known[0], "name": known[1]}


def _kind(item: Any) -> str | None:
    kind = item.get("type") if isinstance(item, dict) else None
    return kind if isinstance(kind, str) else None


def _is_carrier(item: Any) -> bool:
    return _kind(item) == _CARRIER


def _has_namespace(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("namespace"), str) and bool(item["namespace"])


def _joined(namespace: str, name: str) -> str:
    return f"{namespace}__{name}"


class _ToolTable:
    """The flat tools of one request, and whose each flat name is."""

    def __init__(self) -> None:
        self.tools: list[dict[str, Any]] = []
        self.names: dict[str, tuple[str, str]] = {}
        self.changed = False
        self._owners: dict[str, tuple[str, str]] = {}  # flat name -> (namespace or "", name)
        self._places: dict[str, int] = {}
        self._by_short_name: dict[str, list[str]] = {}
        self._by_namespace: dict[str, list[str]] = {}

    def add_all(self, tools: Sequence[dict[str, Any]], *, moved: bool) -> None:
        """Add tools and the tools of namespaces; those ``moved`` out of the input replace what they say anew."""
        for tool in tools:
            if tool.get("type") == "namespace":
                self.changed = True
                for inner in tool["tools"]:
                    self._add(inner, tool["name"], replaces=True)
            else:
                self.changed |= moved
                self._add(tool, "", replaces=moved)

    def _add(self, tool: dict[str, Any], namespace: str, *, replaces: bool) -> None:
        if tool.get("type") not in _NAMED_TOOLS:
            self.tools.append(tool)
            return
        name = tool["name"]
        flat = _joined(namespace, name) if namespace else name
        self._claim(flat, (namespace, name), "tools")
        made = {**tool, "name": flat} if namespace else tool
        if replaces and flat in self._places:
            self.tools[self._places[flat]] = made
            return
        self._places[flat] = len(self.tools)
        self.tools.append(made)
        if namespace:
            self.names[flat] = (namespace, name)
            self._by_short_name.setdefault(name, []).append(flat)
            self._by_namespace.setdefault(namespace, []).append(flat)

    def _claim(self, flat: str, identity: tuple[str, str], where: str) -> None:
        owner = self._owners.setdefault(flat, identity)
        if owner != identity:
            message = f"Value error, {_said(owner)} and {_said(identity)} would both be called {flat!r}; rename one"
            raise invalid([problem("value_error", message, flat, where)])

    def renamed(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return an item under its flat name."""
        if not _has_namespace(item):
            return item
        namespace, name = item["namespace"], item.get("name")
        flat = {key: value for key, value in item.items() if key != "namespace"}
        if isinstance(name, str):
            flat["name"] = _joined(namespace, name)
            self._claim(flat["name"], (namespace, name), "input")
        return flat

    def chosen(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Return a ``tool_choice`` that names flat tools."""
        if choice.get("type") in _NAMED_TOOLS:
            return self._chosen_tool(choice, ("tool_choice", "name"))
        if choice.get("type") != "allowed_tools":
            return choice
        return {**choice, "tools": list(self._allowed(choice["tools"]))}

    def _allowed(self, entries: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        unseen = dict(self._by_namespace)
        for index, entry in enumerate(entries):
            kind, name = _kind(entry), entry.get("name")
            if kind == "namespace" and isinstance(name, str):
                for flat in unseen.pop(name, ()):
                    yield {"type": self.tools[self._places[flat]]["type"], "name": flat}
            elif kind in _NAMED_TOOLS and isinstance(name, str):
                yield self._chosen_tool(entry, ("tool_choice", "tools", index, "name"))
            else:
                yield entry

    def _chosen_tool(self, choice: dict[str, Any], place: tuple[int | str, ...]) -> dict[str, Any]:
        if _has_namespace(choice):
            short = {key: value for key, value in choice.items() if key != "namespace"}
            return {**short, "name": _joined(choice["namespace"], choice["name"])}
        name = choice["name"]
        if name in self._places:
            return choice
        fits = self._by_short_name.get(name, [])
        if len(fits) > 1:
            which = ", ".join(map(repr, fits[:_MOST_TOLD]))
            message = f"Value error, {name!r} is a tool of several namespaces; say which: {which}"
            raise invalid([problem("value_error", message, name, *place)])
        return {**choice, "name": fits[0]} if fits else choice


def _said(identity: tuple[str, str]) -> str:
    namespace, name = identity
    return f"tool {name!r} of namespace {namespace!r}" if namespace else f"tool {name!r}"
