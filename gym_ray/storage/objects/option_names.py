"""Which options the client of an object store knows, asked of the client's own signatures before it is made.

An unknown one would be an error of a class deep in a library, at the first request, or be ignored without a word.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import fsspec

from gym_ray.errors import SettingsError

__all__ = ["check_options"]

_OF_EVERY_CLIENT: Final = frozenset(
    {"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache", "asynchronous", "loop"}
)
_NESTED: Final = ("client_kwargs", "config_kwargs")
"""Options of S3 that are maps of options themselves."""
_LIKELY: Final = 0.5
_SURELY: Final = 0.85


def check_options(scheme: str, place: str, options: Mapping[str, Any]) -> None:
    """Make sure that the client for a scheme knows every option; nothing is connected, and no value is shown.

    Clients for other stores than S3 hand on what they do not know, to be of use or not; of theirs, only what looks like
    a misspelled option is refused.

    Args:
        scheme: Kind of the URL; its client library is installed.
        place: The store, for messages.
        options: What the client is to be given.

    Raises:
        SettingsError: It does not; the option and the likely one are named.
    """
    is_s3 = scheme in ("s3", "s3a")
    _check(f"{scheme}:// has no such option", place, "storage_options", options, _known(scheme), strict=is_s3)
    for name in _NESTED if is_s3 else ():
        inner = options.get(name)
        if inner is None:
            continue
        key = f"storage_options.{name}"
        if not isinstance(inner, Mapping):
            raise SettingsError(place, key, f"it is {type(inner).__name__}, not a map", "give a map of options")
        _check("botocore has no such option", place, key, inner, _known_inside(name), strict=True)


def _check(
    problem: str, place: str, key: str, options: Mapping[str, Any], known: Iterable[str], *, strict: bool
) -> None:
    names = sorted(known)
    for name in options:
        if name in names:
            continue
        near = difflib.get_close_matches(str(name), names, 1, cutoff=_LIKELY if strict else _SURELY)
        if near or strict:
            remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise SettingsError(place, f"{key}.{name}", problem, remedy)


def _known(scheme: str) -> set[str]:
    client = fsspec.get_filesystem_class(scheme)
    known = set(_OF_EVERY_CLIENT)
    for kind in client.__mro__:
        if "__init__" in vars(kind):
            known |= _parameters(kind.__init__)
    if scheme in ("s3", "s3a"):
        from aiobotocore.session import AioSession  # type: ignore[import-untyped]  # s3fs, which needs it, is there

        known |= _parameters(AioSession.__init__)
    return known


def _known_inside(name: str) -> set[str]:
    from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]
    from botocore.session import Session  # type: ignore[import-untyped]

    if name == "client_kwargs":
        return _parameters(Session.create_client)
    return _parameters(AioConfig.__init__) | set(Config.OPTION_DEFAULTS)


def _parameters(function: Callable[..., Any]) -> set[str]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {one.name for one in inspect.signature(function).parameters.values() if one.kind in named} - {"self"}
