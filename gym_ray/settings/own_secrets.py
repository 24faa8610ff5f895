"""Collects the credentials that a run was given, so that they can be kept out of what it writes (B67)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, SecretStr

from gym_ray.settings.problems import MIN_SECRET_CHARS, is_secret_key
from gym_ray.settings.run import RunSettings

__all__ = ["own_secrets"]

_SCHEMES = ("bearer ", "basic ")


def own_secrets(settings: RunSettings) -> tuple[str, ...]:
    """Return the secrets of the settings, sorted: API keys of all servers, and texts under secret keys anywhere.

    Texts of fewer than six characters (``none``, ``EMPTY``) are no secrets, and replacing them would destroy evidence.
    A header's value counts without its scheme, ``Bearer`` or ``Basic``.
    """
    found = set(_secrets(settings, secret=False))
    for server in settings.servers.values():
        found.update(_secrets(server.options, secret=False))
    return tuple(sorted(text for text in found if len(text) >= MIN_SECRET_CHARS))


def _secrets(value: Any, *, secret: bool) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value().strip()
    elif isinstance(value, str):
        if secret:
            yield _without_scheme(value.strip())
    elif isinstance(value, BaseModel | Mapping):
        members = value if isinstance(value, BaseModel) else value.items()
        for key, child in members:
            yield from _secrets(child, secret=secret or is_secret_key(str(key)))
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _secrets(child, secret=secret)


def _without_scheme(text: str) -> str:
    scheme = next((scheme for scheme in _SCHEMES if text.lower().startswith(scheme)), "")
    return text[len(scheme) :].strip()
