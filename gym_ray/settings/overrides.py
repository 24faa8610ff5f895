"""Command-line overrides: ``++key=value``, ``+key=value``, ``key=value`` and ``~key`` (D126).

The grammar is Hydra's, through Hydra's own parser. A token is never quoted in an error beyond its key, for its value
may be a secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.errors import HydraException

from gym_ray.errors import SettingsError
from gym_ray.settings.problems import did_you_mean, dotted

__all__ = ["COMMAND_LINE", "Action", "Override", "apply_overrides", "deep_merge", "parse_override"]

COMMAND_LINE = "command line"
_ABSENT = object()


class Action(Enum):
    """What an override does to its key."""

    SET_OR_ADD = "++"
    ADD = "+"
    CHANGE = ""
    DELETE = "~"


@dataclass(frozen=True, slots=True)
class Override:
    """One parsed token: what to do, to which key, with which value."""

    action: Action
    path: tuple[str, ...]
    value: Any


def parse_override(token: str) -> Override:
    """Parse one command-line token.

    Raises:
        SettingsError: It does not follow the grammar; the message names the key, never the value.
    """
    key = token.partition("=")[0].strip()
    try:
        parsed: HydraOverride = OverridesParser.create().parse_override(token)
        value = _value(parsed)
    except (HydraException, ValueError) as error:
        raise SettingsError(COMMAND_LINE, key, "the override cannot be parsed", _remedy(token)) from error
    path = tuple(str(parsed.key_or_group).split("."))
    if parsed.package is not None or "/" in parsed.key_or_group or not all(path):
        raise SettingsError(COMMAND_LINE, key, "not a dotted key", "write ++section.key=value")
    return Override(_action(parsed), path, value)


def _value(parsed: HydraOverride) -> Any:
    if parsed.is_sweep_override():
        raise ValueError("a sweep")
    return _with_text_keys(parsed.value())


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_text_keys(child) for key, child in value.items()}
    return [_with_text_keys(child) for child in value] if isinstance(value, list) else value


def _action(parsed: HydraOverride) -> Action:
    if parsed.is_force_add():
        return Action.SET_OR_ADD
    if parsed.is_add():
        return Action.ADD
    return Action.DELETE if parsed.is_delete() else Action.CHANGE


def _remedy(token: str) -> str:
    if "=" not in token and not token.startswith("~"):
        return "write ++key=value"
    return "write ++key=value, lists as ++key=[a,b], and quote a value that holds = , { } [ ] or quotes: ++key='…'"


def deep_merge(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """Return ``low`` overlaid with ``high``: maps merge, everything else replaces (D127). Neither is changed."""
    merged = {key: _copy(value) for key, value in low.items()}
    for key, value in high.items():
        below = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        merged[key] = deep_merge(cast("dict[str, Any]", below), value) if both else _copy(value)
    return merged


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(child) for key, child in value.items()}
    return [_copy(child) for child in value] if isinstance(value, list) else value


def apply_overrides(base: dict[str, Any], overrides: Sequence[Override]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Apply overrides in order to what the files say.

    Returns:
        The merged settings, and those that stem from the command line alone. ``base`` is not changed.

    Raises:
        SettingsError: ``+key`` twice, or ``key=value`` or ``~key`` for a key that nothing has set.
    """
    merged, own = _copy(base), dict[str, Any]()
    for override in overrides:
        path, value = override.path, override.value
        if override.action is Action.ADD and not _may_add(_get(own, path), value):
            remedy = f"pass it once, or replace it with ++{dotted(path)}=…"
            raise SettingsError(COMMAND_LINE, dotted(path), "added twice with +", remedy)
        if override.action in (Action.CHANGE, Action.DELETE) and _get(merged, path) is _ABSENT:
            raise _absent(override, merged)
        if override.action is Action.DELETE:
            _delete(merged, override)
            _delete(own, override)
        else:
            _put(merged, path, value)
            _put(own, path, value)
    return merged, own


def _may_add(present: Any, value: Any) -> bool:
    return present is _ABSENT or present is None or (isinstance(present, dict) and isinstance(value, dict))


def _absent(override: Override, merged: dict[str, Any]) -> SettingsError:
    key = dotted(override.path)
    parent = _get(merged, override.path[:-1])
    names = [str(name) for name in parent] if isinstance(parent, dict) else []
    hint = did_you_mean(override.path[-1], names)
    if override.action is Action.DELETE:
        return SettingsError(COMMAND_LINE, key, "cannot be removed, it is not set", hint or "leave ~ out")
    remedy = f"write ++{key}=… to add it" + (f"; {hint}" if hint.startswith("did") else "")
    return SettingsError(COMMAND_LINE, key, "cannot be changed, it is not set", remedy)


def _get(tree: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if isinstance(tree, dict) and part in tree:
            tree = tree[part]
        elif isinstance(tree, list) and part.isdecimal() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return _ABSENT
    return tree


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    holder: Any = tree
    for depth, part in enumerate(path[:-1]):
        child = _get(holder, (part,))
        if not isinstance(child, dict | list):
            child = {}
            _assign(holder, path[: depth + 1], child)
        holder = child
    present = _get(holder, path[-1:])
    if isinstance(present, dict) and isinstance(value, dict):
        value = deep_merge(present, value)
    _assign(holder, path, _copy(value))


def _assign(holder: Any, path: tuple[str, ...], value: Any) -> None:
    if isinstance(holder, dict):
        holder[path[-1]] = value
        return
    if not path[-1].isdecimal() or int(path[-1]) >= len(holder):
        problem = f"{path[-1]!r} is no position in a list of {len(holder)}"
        raise SettingsError(COMMAND_LINE, dotted(path), problem, "give the whole list: ++key=[a,b]")
    holder[int(path[-1])] = value


def _delete(tree: dict[str, Any], override: Override) -> None:
    holder, last = _get(tree, override.path[:-1]), override.path[-1]
    if isinstance(holder, dict):
        present = holder.get(last)
        if override.value is not None and last in holder and present != override.value:
            raise SettingsError(COMMAND_LINE, dotted(override.path), "has another value than ~ names", "leave =… out")
        holder.pop(last, None)
    elif isinstance(holder, list):
        raise SettingsError(COMMAND_LINE, dotted(override.path), "an item of a list cannot be removed", "give the list")
