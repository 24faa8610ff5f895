"""What a name in a store may be, alike on every kind of store."""

from __future__ import annotations

from pathlib import PurePosixPath

from gym_ray.errors import StorageError

__all__ = ["check_range", "is_shown", "name_parts", "shown_url"]


def name_parts(name: str) -> tuple[str, ...]:
    """Return the parts of a name.

    Raises:
        StorageError: It is empty or absolute, or a part begins with a dot.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or "\0" in name or any(part.startswith(".") for part in parts):
        raise StorageError(f"{name!r} cannot be a name here: relative, no part may begin with a dot")
    return parts


def check_range(name: str, start: int, length: int) -> None:
    """Refuse a range that no value has.

    Raises:
        StorageError: A number is negative.
    """
    if start < 0 or length < 0:
        raise StorageError(f"{name}: cannot read {length} bytes from {start} on")


def is_shown(name: str) -> bool:
    """Return whether a listing shows a name: no part of it may begin with a dot or be empty."""
    return all(part and not part.startswith(".") for part in name.split("/"))


def shown_url(where: str) -> str:
    """Return a path, or a URL without what may be credentials in it: user, password, query, fragment."""
    scheme, separator, rest = where.partition("://")
    if not separator:
        return where
    rest = rest.partition("?")[0].partition("#")[0]
    host, slash, path = rest.partition("/")
    if "@" in host and scheme not in ("abfs", "abfss"):  # there it parts container and account
        host = host.rpartition("@")[2]
    return f"{scheme}://{host}{slash}{path}".rstrip("/")
