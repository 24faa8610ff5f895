"""How commands name a place of captures, and open it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from gym_ray import exact_json
from gym_ray.capture_location import CaptureLocation, is_url
from gym_ray.errors import SettingsError
from gym_ray.model_call_capture.captures import Captures, open_existing_captures

__all__ = ["CapturePlace", "StorageOptions", "capture_location", "opened_captures"]

CapturePlace = Annotated[str, typer.Argument(help="Capture directory, or URL.", metavar="DIR|URL")]
StorageOptions = Annotated[
    str | None, typer.Option("--storage-options", help="JSON object for the client of an object store.", metavar="JSON")
]


def capture_location(place: str, storage_options: str | None = None) -> CaptureLocation:
    """Return the location that a command was given; a relative directory is one of here.

    Raises:
        SettingsError: The options are no JSON object, or the place cannot hold captures.
    """
    options: dict[str, Any] | None = None
    if storage_options is not None:
        options = exact_json.loads_object(storage_options.encode())
        if options is None:
            raise SettingsError("command line", "--storage-options", "is no JSON object", 'give {"anon": true}')
    return CaptureLocation.of(place if is_url(place) else Path(place).absolute(), options)


@contextmanager
def opened_captures(place: str, storage_options: str | None = None) -> Iterator[Captures]:
    """Open the captures of a place for the block.

    Raises:
        CaptureError: There is no such directory.
        SettingsError: See :func:`capture_location`; or nothing that is installed can open the URL.
    """
    captures = open_existing_captures(capture_location(place, storage_options))
    try:
        yield captures
    finally:
        captures.close()
