"""Turns settings into what YAML can hold, with or without their secrets. Must never let a secret into redacted text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from gym_ray.settings.interpolation import escape_interpolation
from gym_ray.settings.problems import MIN_SECRET_CHARS, is_secret_key

__all__ = ["REDACTED", "plain", "secret_texts"]

REDACTED = "**********"
"""Stands for a secret in redacted YAML."""


def secret_texts(value: Any) -> frozenset[str]:
    """Return the secrets of a dumped tree that are long enough to be told from ordinary words."""
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        return frozenset({text} if len(text) >= MIN_SECRET_CHARS else ())
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return frozenset().union(*(secret_texts(child) for child in children))


def plain(value: Any, secrets: frozenset[str], redact: bool) -> Any:
    """Turn dumped settings into what YAML can hold, with ``${`` escaped so that it loads as it is."""
    if isinstance(value, Mapping):
        return {
            key: REDACTED if redact and is_secret_key(str(key)) and child is not None else plain(child, secrets, redact)
            for key, child in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(child, secrets, redact) for child in value]
    if isinstance(value, SecretStr):
        return REDACTED if redact else escape_interpolation(value.get_secret_value())
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, str):
        return value
    if secrets:
        value = re.sub("|".join(map(re.escape, sorted(secrets, key=len, reverse=True))), REDACTED, value)
    return escape_interpolation(value)
