"""Image sources of Messages and image URLs of Responses, each as the other; nothing is fetched or decoded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects import fields
from gym_ray.dialects.conversion.carried import shown

__all__ = ["image_source", "image_url"]

_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_ALIASES: Final = {"image/jpg": "image/jpeg"}
_DATA_URL: Final = re.compile(r"data:(?P<type>[^;,]*)(?P<parameters>(?:;[^;,]*)*),", re.IGNORECASE)
_REMOTE: Final = re.compile(r"https?://", re.IGNORECASE)


def image_url(source: Mapping[str, Any], path: str, *, remote: bool) -> str:
    """Return the URL of an image source of Messages (A156).

    Args:
        source: A ``base64`` or ``url`` source.
        path: Its place in the body.
        remote: Whether an image may be named by a URL that the engine has to fetch.

    Raises:
        UnsupportedRequestError: It is malformed, of another kind or media type, or remote where that is not allowed.
    """
    kind = source.get("type")
    if kind == "base64":
        media_type = _media_type(fields.as_string(source.get("media_type"), f"{path}.media_type"), f"{path}.media_type")
        return f"data:{media_type};base64,{fields.as_string(source.get('data'), f'{path}.data')}"
    if kind == "url":
        url = fields.as_string(source.get("url"), f"{path}.url")
        parsed = image_source(url, f"{path}.url", remote=remote)
        return url if parsed["type"] == "url" else image_url(parsed, path, remote=remote)
    raise fields.unsupported(f"{path}.type", f"{shown(kind)} image sources are not supported; use base64")


def image_source(url: str, path: str, *, remote: bool) -> dict[str, Any]:
    """Return the image source of Messages for a URL; see :func:`image_url`.

    Raises:
        UnsupportedRequestError: As :func:`image_url`.
    """
    data = _DATA_URL.match(url)
    if data is None:
        return {"type": "url", "url": _remote_url(url, path, allowed=remote)}
    if not data["parameters"].lower().endswith(";base64"):
        raise fields.unsupported(path, "is a data URL that is not base64")
    return {"type": "base64", "media_type": _media_type(data["type"], path), "data": url[data.end() :]}


def _media_type(name: str, path: str) -> str:
    media_type = _ALIASES.get(name.lower(), name.lower())
    if media_type not in _TYPES:
        raise fields.unsupported(path, f"{shown(name)} images are not supported; use one of {', '.join(_TYPES)}")
    return media_type


def _remote_url(url: str, path: str, *, allowed: bool) -> str:
    if not _REMOTE.match(url):
        raise fields.malformed(path, "is neither a base64 data URL nor an http URL")
    if not allowed:
        raise fields.unsupported(path, "is a remote image, which is not fetched here; send it as base64")
    return url
