"""Reads what a conversion only carries from one dialect to another.

What is carried is never judged or repaired: bad JSON stays bad JSON (B27). Values of a client or an engine are shown in
messages only as quoted, shortened texts, so that a message can always be written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gym_ray import exact_json
from gym_ray.errors import EngineError

__all__ = [
    "CARRIED_SETTINGS",
    "SHARED_SETTINGS",
    "answer_objects",
    "answer_text",
    "argument_text",
    "broken",
    "moment",
    "name_of",
    "objects",
    "refuse_failure",
    "set_aside",
    "shown",
    "wordless",
]

SHARED_SETTINGS: Final = (
    "model",
    "metadata",
    "temperature",
    "top_p",
    "user",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
)
"""Settings that Chat and Responses call by the same name and mean the same by."""

CARRIED_SETTINGS: Final = ("stop", "top_k", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "user")
"""Neutral names of the settings that travel beside a Responses request, because it cannot say all of them."""

_WORDED: Final = ("text", "output_text", "refusal")
_LONGEST_SHOWN: Final = 80
_LONGEST_FAILURE: Final = 500
_STATUS_OF_CODE: Final[Mapping[str | int, int]] = {"rate_limit_exceeded": 429, 429: 429, "invalid_prompt": 400}


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
        EngineError: It does; the message says what it told. The status is 502, unless the error's code says that the
            client asked too often (429) or wrongly (400).
    """
    error = answer.get("error")
    if not error and answer.get("object") == "error":
        error = answer
    if not error:
        return
    told, code = (error.get("message"), error.get("code")) if isinstance(error, Mapping) else (error, None)
    status = _STATUS_OF_CODE.get(code, 502) if isinstance(code, str | int) else 502
    raise broken(f"{path}error", f"says that the engine failed: {shown(told, _LONGEST_FAILURE)}", status)


def set_aside(response: Mapping[str, Any]) -> list[Any]:
    """Return what an earlier conversion could not say in Responses, so that the next one tells it too."""
    aside = response.get("gym_ray")
    left = aside.get("unconverted") if isinstance(aside, Mapping) else None
    return list(left) if isinstance(left, list) else []


def broken(path: str, problem: str, status: int = 502) -> EngineError:
    """Return the error for an engine's answer that has no form in the other dialect."""
    return EngineError(f"the engine's answer is not usable: {path} {problem}", status)


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


def wordless(content: object) -> list[Mapping[str, Any]]:
    """Return the parts of a message that say something else than words, such as a sound."""
    return [part for part in objects(content) if part.get("type") not in _WORDED and part.get("text") is None]


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
