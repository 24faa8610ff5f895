"""JSON text in ASCII, for JSON that stands as a text inside of other JSON, and for the lines of event streams."""

from __future__ import annotations

import json
from typing import Any

from gym_ray import exact_json

__all__ = ["ascii_json"]


def ascii_json(value: Any, separators: tuple[str, str] = (", ", ": ")) -> str:
    """Return ``value`` as JSON text in ASCII; lone surrogates and integers of any size come out as they went in.

    Non-finite numbers become null, values without a JSON form become their string.

    Args:
        value: What to encode.
        separators: What stands between members, and between a name and its value. The default is what models and their
            providers write (A144).

    Raises:
        ValueError: The value nests deeper than the interpreter can follow.
    """
    try:
        # The standard library escapes what is not ASCII, and follows as deep as its own parser does.
        return json.dumps(value, separators=separators, allow_nan=False, default=str)
    except RecursionError:
        raise ValueError("value is nested too deeply for JSON") from None
    except ValueError:
        return json.dumps(exact_json.loads(exact_json.dumps(value)), separators=separators)
