"""How a mistake in the settings is worded: one line with its place, its key, what is wrong and what would be right.

Nothing here may put a secret into a message: a value is shown only if neither its key nor its text is secret.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gym_ray.errors import SettingsError

__all__ = ["MIN_SECRET_CHARS", "PLAIN_WORDS", "KeyPath", "combine", "did_you_mean", "dotted", "is_secret_key", "show"]

KeyPath = tuple[str | int, ...]
"""Keys from the top of a document down to a value; list positions are ints."""

MIN_SECRET_CHARS = 6
"""Shorter texts under secret keys (``x``, ``none``) are hidden there, but not wherever else the same text stands."""

PLAIN_WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("bool_parsing", "bool_type"), "should be true or false"),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "should be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "should be a number"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "should be a map of keys and values"),
    "path_type": "should be a path",
    "string_too_short": "should not be empty",
    "string_type": "should be text",
    "tuple_type": "should be a list",
}
"""What would be right, by pydantic's name of a mistake."""

_SECRET_KEY = re.compile(r"(^|[-_])key$|apikey|token$|secret|passw|authorization|credential", re.IGNORECASE)
_URL_USER = re.compile(r"//[^/\s]*@")
_MAX_SHOWN_CHARS = 80


def dotted(path: Sequence[str | int]) -> str:
    """Return the path as people write it on the command line: ``policy_model.port``."""
    return ".".join(str(part) for part in path)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest known name, else all of them, else ""."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(names)}" if names else ""


def is_secret_key(name: str) -> bool:
    """Say whether values under a key, or in an environment variable, of this name are secret."""
    return _SECRET_KEY.search(name) is not None


def show(value: object, path: KeyPath, secrets: Iterable[str]) -> str:
    """Return a short form of a wrong value for a message, or a remark in its place if it is or holds a secret."""
    text = _URL_USER.sub("//…@", repr(value))
    if any(is_secret_key(str(part)) for part in path) or any(secret in text for secret in secrets):
        return "the value (secret, not shown)"
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"


def combine(mistakes: Sequence[SettingsError]) -> SettingsError:
    """Return one error for at least one mistake; its message has one line for each."""
    distinct = list({str(mistake): mistake for mistake in mistakes}.values())
    first = distinct[0]
    if len(distinct) == 1:
        return first
    rest = "".join(f"\n{mistake}" for mistake in distinct[1:])
    if first.remedy:
        return SettingsError(first.where, first.key, first.problem, first.remedy + rest)
    return SettingsError(first.where, first.key, first.problem + rest)
