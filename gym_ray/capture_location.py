"""Where captures are: a directory that all share, or a place in an object store. It travels; it opens nothing.

What it is given to open a store with may hold credentials, so neither ``str`` nor ``repr`` shows that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from gym_ray.errors import SettingsError

__all__ = ["CAPTURE_SCHEMES", "CaptureLocation", "is_url"]

CAPTURE_SCHEMES = ("s3", "s3a", "abfs", "abfss", "az", "gs", "gcs", "memory", "file")
"""Kinds of URL that captures can be kept under."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ACCOUNT_BEHIND_AT = ("abfs", "abfss", "az")


def is_url(where: str) -> bool:
    """Return whether a place is written as a URL."""
    return _URL.match(where) is not None


@dataclass(frozen=True, slots=True)
class CaptureLocation:
    """A place of captures.

    Attributes:
        where: Absolute path, or URL of an object store, such as ``s3://bucket/prefix``. ``file:///x`` becomes ``/x``.
        storage_options: What fsspec is given for a URL; may hold credentials.

    Raises:
        SettingsError: The place is a relative path, or a URL of a kind that keeps no captures; or a directory was given
            options.
    """

    where: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        found = _URL.match(self.where)
        scheme = found[1].lower() if found else "file"
        if scheme not in CAPTURE_SCHEMES:
            remedy = f"give an absolute path, or a URL of one of {', '.join(CAPTURE_SCHEMES)}"
            raise SettingsError(str(self), "", f"captures cannot be kept under {scheme}://", remedy)
        if found and scheme == "file":
            object.__setattr__(self, "where", _path_of(self.where))
        elif not found and not self.where.startswith("/"):
            raise SettingsError(self.where, "", "a relative path depends on who opens it", "give an absolute path")
        if self.storage_options and self.directory is not None:
            raise SettingsError(self.where, "storage_options", "a directory takes no options", "leave them out")

    @classmethod
    def of(cls, where: str | Path, storage_options: Mapping[str, Any] | None = None) -> CaptureLocation:
        """Return the location that a path or a URL names.

        Raises:
            SettingsError: See the class.
        """
        return cls(str(where), dict(storage_options or {}))

    @property
    def directory(self) -> Path | None:
        """The directory, None for an object store."""
        return None if is_url(self.where) else Path(self.where)

    def __str__(self) -> str:
        """Return the place without what may be credentials in it: user, password, query, fragment."""
        if not is_url(self.where):
            return self.where
        scheme, _, rest = self.where.partition("://")
        host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
        if scheme.lower() not in _ACCOUNT_BEHIND_AT:
            host = host.rpartition("@")[2]
        return f"{scheme}://{host}{slash}{path}".rstrip("/")


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise SettingsError(url, "", f"a file:// URL cannot name a host, {parts.netloc!r}", "use file:///path")
    return unquote(parts.path)
