"""Reads what a conversion only carries from one dialect to another.

What is carried is never judged or repaired: bad JSON stays bad JSON (B27). Values of a client or an engine are shown in
messages only as quoted, shortened texts, so that a message can always be written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import EngineError

__all__ = [
    "answer_objects",
    "answer_text",
    "argument_text",
    "broken",
    "moment",
    "name_of",
    "objects",
    "refuse_failure",
    "shown",
]

_LONGEST_SHOWN = 80
_LONGEST_FAILURE = 500


def shown(value: object, longest: int = _LONGEST_SHOWN) -> str:
    """Return how a message may show ``value``: texts quoted and shortened, anything else by its kind."""
    if isinstance(value, str):
        return repr(value if len(value) <= longest else value[:longest] + "…")
    return "null" if value is None else type(value).__name__


def objects(values: object) -> list[Mapping[str, Any]]:
    """Return the objects among the members of a list; nothing for what is no list."""
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list | tuple) else []


def refuse_failure(answer: Mapping[str, Any], path: str = "") -> None:
    """Refuse an answer, or a part of one, that tells an error instead (B21, B23).

    Raises:
        EngineError: It does; the message says what it told.
    """
    error = answer.get("error")
    if not error and answer.get("object") == "error":
        error = answer
    if error:
        told = error.get("message") if isinstance(error, Mapping) else error
        raise broken(f"{path}error", f"says that the engine failed: {shown(told, _LONGEST_FAILURE)}")


def broken(path: str, problem: str) -> EngineError:
    """Return the error for an engine's answer that has no form in the other dialect; status 502."""
    return EngineError(f"the engine's answer is not usable: {path} {problem}", 502)


def answer_text(value: object, path: str) -> str:
    """Return an optional text of an answer, "" where it is null.

    Raises:
        EngineError: It is something else.
    """
    if value is None or isinstance(value, str):
        return value or ""
    raise broken(path, f"should be a string, not {shown(value)}")


def answer_objects(value: object, path: str) -> Sequence[Mapping[str, Any]]:
    """Return an answer's list of objects, empty where it is null.

    Raises:
        EngineError: It is no list, or one of its members is no object.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise broken(path, f"should be a list, not {shown(value)}")
    for index, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise broken(f"{path}[{index}]", f"should be an object, not {shown(item)}")
    return value


def argument_text(value: object, path: str) -> str:
    """Return the arguments of a call as text: as they were written (B27), or the text of a value that is no string.

    Raises:
        EngineError: The value nests too deeply to be written.
    """
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return exact_json.dumps(value).decode("utf-8")
    except ValueError:
        raise broken(path, "nests too deeply") from None


def name_of(*candidates: object) -> str:
    """Return the first candidate that is a non-empty text, "" when there is none."""
    return next((value for value in candidates if isinstance(value, str) and value), "")


def moment(value: object) -> int | float:
    """Return the time of an answer in seconds since 1970, now when it does not tell one."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53:
        return value
    return int(time.time())
