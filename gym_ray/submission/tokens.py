"""Writes settings as overrides, so that the grammar of overrides reads exactly them (D133)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gym_ray.errors import SettingsError

__all__ = ["literal", "quoted", "run_tokens"]

_PLAIN = re.compile(r"[A-Za-z_/.][A-Za-z0-9_/.:-]*")
_WORDS: Final = frozenset({"true", "false", "null", "nan", "inf"})
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_0-9][A-Za-z0-9_-]*)*")
_MAP_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_KEY_REMEDY = "put it into a settings file and name that under config_paths"


def run_tokens(run: Mapping[str, Any], where: str = "run") -> list[str]:
    """Return one ``+dotted.key=value`` for each value of a run, in its order; nested maps are flattened.

    A value that holds ``${…}`` is filled in by the run that reads it.

    Args:
        run: Settings, whose values are what YAML can hold.
        where: What an error names in front of the key.

    Raises:
        SettingsError: A key cannot be written in that grammar, or two ways of writing lead to one key.
    """
    tokens: dict[str, str] = {}
    for key, value in _flat(run, ()):
        name = ".".join(key)
        if not _KEY.fullmatch(name):
            raise SettingsError(where, name, "cannot be written as an override", _KEY_REMEDY)
        taken = next((one for one in tokens if _meet(one, name)), None)
        if taken is not None:
            raise SettingsError(where, name, f"is given twice, also as {taken}", "write it once")
        tokens[name] = f"+{name}={literal(value, where, name)}"
    return list(tokens.values())


def _flat(values: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        path = (*above, str(key))
        if isinstance(value, Mapping) and value:
            yield from _flat(value, path)
        else:
            yield path, value


def _meet(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def literal(value: Any, where: str = "", key: str = "") -> str:
    """Return a value as the grammar of overrides writes it.

    Args:
        value: None, true or false, a number, text, or lists and maps of these.
        where: What an error names, with ``key``.
        key: Dotted key of the value.

    Raises:
        SettingsError: It is something else, or a map inside has a key that the grammar cannot write.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(literal(item, where, key) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_map_key(k, where, key)}:{literal(v, where, key)}" for k, v in value.items()) + "}"
    raise SettingsError(where, key, f"a {type(value).__name__} cannot be written as an override", _KEY_REMEDY)


def _map_key(name: Any, where: str, key: str) -> str:
    if not isinstance(name, str) or not _MAP_KEY.fullmatch(name) or name.lower() in _WORDS:
        raise SettingsError(where, f"{key}.{name}", "cannot be written as an override", _KEY_REMEDY)
    return name


def _text(text: str) -> str:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS and not text.endswith(":")
    return text if plain and not _is_number(text) else quoted(text)


def _is_number(text: str) -> bool:
    try:
        float(text.replace("_", ""))
    except ValueError:
        return False
    return True


def quoted(text: str, quote: str = "'") -> str:
    """Quote a text; backslashes count only in front of a quote, the closing one included.

    Args:
        text: Any text.
        quote: One of the two quotes.
    """
    escaped = re.sub(rf"(\\*)({quote}|$)", lambda m: m[1] * 2 + ("\\" + m[2] if m[2] else ""), text)
    return f"{quote}{escaped}{quote}"
