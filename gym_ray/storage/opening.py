"""Which kind of store a place is."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from gym_ray.errors import SettingsError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.names import shown_url
from gym_ray.storage.posix import PosixStore
from gym_ray.storage.store import SegmentStore

__all__ = ["open_store"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def open_store(
    where: str | Path,
    *,
    storage_options: Mapping[str, Any] | None = None,
    calls: FileCalls | None = None,
    mode: int = 0o644,
) -> SegmentStore:
    """Return the store at a place, without touching it yet.

    Args:
        where: An absolute path, a ``file://`` URL, or that of an object store, such as ``s3://bucket/prefix``.
        storage_options: What fsspec is to be given for such a URL, credentials among it; never logged or shown.
        calls: How the operating system is called, for a directory.
        mode: Permission bits of files, for a directory.

    Raises:
        SettingsError: The place is a relative path, a file, or of a kind that nothing installed can open or that keeps
            no promise about whole values; or the options are no map, or the client has no such option.
    """
    text = str(where)
    given: object = storage_options
    if given is not None and not isinstance(given, Mapping):
        problem = f"they are {type(given).__name__}, not a map"
        raise SettingsError(shown_url(text), "storage_options", problem, 'give a map such as {"anon": True}')
    if not _SCHEME.match(text):
        return _open_directory(text, text, storage_options, calls, mode)
    if text.lower().startswith("file://"):
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise SettingsError(text, "", f"a file:// URL cannot name a host, {parts.netloc!r}", "use file:///path")
        return _open_directory(text, unquote(parts.path), storage_options, calls, mode)
    from gym_ray.storage.object_store import ObjectStore  # a directory needs no client library

    return ObjectStore(text, storage_options)


def _open_directory(
    where: str, path: str, options: Mapping[str, Any] | None, calls: FileCalls | None, mode: int
) -> PosixStore:
    if not path.startswith("/"):
        raise SettingsError(where, "", "a relative path depends on who opens it", "give an absolute path or a URL")
    if options:
        raise SettingsError(where, "storage_options", "a directory takes no options", "leave them out")
    _refuse_file(where, Path(path))
    return PosixStore(Path(path), calls=calls, mode=mode)


def _refuse_file(where: str, path: Path) -> None:
    """Refuse what lies where the directory should be, or where one of those above it should.

    Raises:
        SettingsError: Something does that is no directory. What cannot be looked at is left to whoever reads or writes.
    """
    for place in (path, *path.parents):
        try:
            mode = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return
        if not stat.S_ISDIR(mode):
            raise SettingsError(where, "", f"{_what(place, path, mode)}, not a directory", "name a directory")
        return


def _what(place: Path, path: Path, mode: int) -> str:
    kind = "a file" if stat.S_ISREG(mode) else "something else"
    return f"is {kind}" if place == path else f"{place} is {kind}"
