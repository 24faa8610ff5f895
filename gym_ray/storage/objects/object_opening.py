"""Which client an object store needs, and how its place is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import fsspec

from gym_ray.errors import SettingsError
from gym_ray.storage.names import shown_url
from gym_ray.storage.objects.memory_backend import MemoryBackend
from gym_ray.storage.objects.object_backend import ObjectBackend
from gym_ray.storage.objects.option_names import check_options

__all__ = ["check_kind", "holds_secrets", "open_backend", "without_secrets"]

_EXTRAS = {"s3": "s3", "s3a": "s3", "abfs": "azure", "abfss": "azure", "az": "azure", "gs": "gcs", "gcs": "gcs"}
"""The kinds of stores that put whole objects in one step, and the extra that brings the client library."""
_S3_CONNECTIONS = 64
"""With botocore's 10, a request of many threads may wait for a connection until that counts as a timeout."""
_SECRET = re.compile(r"key|secret|token|password|passwd|credential|connection_string|signature|sas", re.IGNORECASE)
_SHORTEST_SECRET = 4


def without_secrets(text: str, options: Mapping[str, Any]) -> str:
    """Return a text without the values of those options whose names sound like secrets."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            text = without_secrets(text, value)
        elif _SECRET.search(name) and isinstance(value, str) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "***")
    return text


def holds_secrets(error: BaseException, options: Mapping[str, Any]) -> bool:
    """Return whether an error, or what led to it, shows what :func:`without_secrets` hides."""
    led: BaseException | None = error
    while led is not None:
        if without_secrets(str(led), options) != str(led):
            return True
        led = led.__cause__ or led.__context__
    return False


def check_kind(url: str, options: Mapping[str, Any]) -> None:
    """Make sure that the client library for a URL is there, and knows the options; nothing is connected.

    Raises:
        SettingsError: It is not, or does not, or the URL is of a kind that keeps no promise.
    """
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        return
    extra = _EXTRAS.get(scheme)
    if extra is None:  # others show half a value, and let two writers of one name win
        raise SettingsError(
            shown_url(url),
            "",
            f"{scheme}:// is no store whose values are there whole or not at all",
            f"use an absolute path, {', '.join(f'{kind}://' for kind in sorted(_EXTRAS))} or memory://",
        )
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        remedy = f"pip install 'gym-ray[{extra}]'"
        raise SettingsError(shown_url(url), "", f"{scheme}:// cannot be opened: {error}", remedy) from error
    check_options(scheme, shown_url(url), options)


def open_backend(url: str, options: Mapping[str, Any]) -> tuple[ObjectBackend, str]:
    """Return a client of its own for a URL, and the path of the URL's root; listings are never kept.

    Raises:
        Exception: The options do not fit.
    """
    given = {"use_listings_cache": False, "skip_instance_cache": True, **options}
    if url.partition(":")[0] in ("s3", "s3a"):
        given["config_kwargs"] = {"max_pool_connections": _S3_CONNECTIONS, **given.get("config_kwargs", {})}
    file_system, root = fsspec.url_to_fs(url, **given)
    protocols = {file_system.protocol} if isinstance(file_system.protocol, str) else set(file_system.protocol)
    return _backend_for(file_system, protocols), root.rstrip("/")


def _backend_for(file_system: Any, protocols: set[str]) -> ObjectBackend:
    # each module needs a library that only its own kind of store needs
    if "memory" in protocols:
        return MemoryBackend(file_system)
    if "s3" in protocols:
        from gym_ray.storage.objects.s3_backend import S3Backend

        return S3Backend(file_system)
    if "abfs" in protocols:
        from gym_ray.storage.objects.azure_backend import AzureBackend

        return AzureBackend(file_system)
    from gym_ray.storage.objects.gcs_backend import GcsBackend

    return GcsBackend(file_system)
