"""Takes known secrets out of what agents hand back: a program that prints its environment must not store the run's key.

Only exact texts are found; a secret that was encoded or cut is not.
"""

from __future__ import annotations

from collections.abc import Iterable

from gym_ray.settings.problems import MIN_SECRET_CHARS
from gym_ray.settings.run import REDACTED

__all__ = ["hide", "hide_in_text"]


def hide(data: bytes, secrets: Iterable[str | None]) -> bytes:
    """Return ``data`` with every secret replaced; texts too short to be one are left, for they may stand anywhere."""
    known = {secret for secret in secrets if secret is not None and len(secret) >= MIN_SECRET_CHARS}
    for secret in sorted(known, key=len, reverse=True):
        data = data.replace(secret.encode(), REDACTED.encode())
    return data


def hide_in_text(text: str, secrets: Iterable[str | None]) -> str:
    """Return ``text`` with every secret replaced, like :func:`hide`."""
    return hide(text.encode("utf-8", "surrogatepass"), secrets).decode("utf-8", "surrogatepass")
