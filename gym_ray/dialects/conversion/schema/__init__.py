"""What a request body must look like, by dialect, and what is said when it does not (A183-A186).

Validation only judges: the body that goes on is made of the client's own values. Complaints are pydantic's own, one
object a field, with a location that is a path in the client's body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import SchemaValidator
from pydantic_core import core_schema as cs

from gym_ray import exact_json
from gym_ray.dialects import CHAT, RESPONSES
from gym_ray.dialects.conversion.schema import chat, responses
from gym_ray.dialects.conversion.schema.shapes import WHOLES, Check, Problem, problems
from gym_ray.errors import InvalidRequestError

__all__ = ["REQUIRED_PREFIX", "SCHEMAS", "BodySchema", "body_problems", "invalid", "placed", "problem"]

REQUIRED_PREFIX = "required_prefix_token_ids"
"""The field of the compaction adapter: ids that the prompt must begin with (A172)."""

_MOST_PROBLEMS = 100
_DEEPEST_ECHOED = 64  # levels: what an echo nests must leave room for the answer around it
_MOST_ECHOED = 4096  # characters and members; a complaint about a body must not be as large as the body


@dataclass(frozen=True, slots=True)
class BodySchema:
    """How one dialect's body is checked.

    Attributes:
        elements: The field that holds the conversation, ``input`` or ``messages``.
        fields: All top-level fields but the extensions.
        plain_only: Provider fields that a plain request may have and a streamed one loses (A148).
        whole: Checks a body, ``plain_only`` fields included.
        outer: Checks a body whose conversation and tools were checked one by one.
        element: Checks one element of the conversation.
        tool: Checks one tool.
        drops_elements: A streamed request is served without elements and tools that break the schema (A150, A151).
    """

    elements: str
    fields: frozenset[str]
    plain_only: frozenset[str]
    whole: Check
    outer: Check
    element: Check
    tool: Check
    drops_elements: bool


SCHEMAS: Mapping[str, BodySchema] = {
    RESPONSES: BodySchema(
        elements="input",
        fields=responses.RESPONSES_FIELDS,
        plain_only=frozenset(),
        whole=responses.RESPONSES_CHECK,
        outer=responses.RESPONSES_OUTER_CHECK,
        element=responses.ITEM_CHECK,
        tool=responses.TOOL_CHECK,
        drops_elements=True,
    ),
    CHAT: BodySchema(
        elements="messages",
        fields=chat.CHAT_FIELDS,
        plain_only=chat.CHAT_EXTENSIONS,
        whole=chat.CHAT_CHECK,
        outer=chat.CHAT_OUTER_CHECK,
        element=chat.MESSAGE_CHECK,
        tool=chat.CHAT_TOOL_CHECK,
        drops_elements=False,
    ),
}

# Fields of servers that take more than their dialect has; one that is not listed here may hold anything.
_EXTENSION_CHECKS: Mapping[str, Check] = {
    REQUIRED_PREFIX: SchemaValidator(cs.nullable_schema(WHOLES)),
}


def body_problems(check: Check, body: Mapping[str, Any], extensions: frozenset[str]) -> list[Problem]:
    """Return everything that is wrong with ``body``, its extension fields included; [] when nothing is."""
    found = problems(check, {key: value for key, value in body.items() if key not in extensions})
    for name in sorted(extensions & body.keys() & _EXTENSION_CHECKS.keys()):
        found += placed(problems(_EXTENSION_CHECKS[name], body[name]), name)
    return found


def placed(found: Sequence[Problem], *place: int | str) -> list[Problem]:
    """Return problems of a value as problems of the object that holds it at ``place``."""
    return [{**one, "loc": (*place, *one["loc"])} for one in found]


def problem(kind: str, message: str, value: object, *place: int | str, **context: object) -> Problem:
    """Return a problem that no schema can see, at ``place`` in the body."""
    found: Problem = {"type": kind, "loc": place, "msg": message, "input": value}
    return found | {"ctx": context} if context else found


def invalid(found: Sequence[Problem]) -> InvalidRequestError:
    """Return the error for problems of a body: the first 100, each without an ``input`` that is large or deep."""
    kept = [_without_large_input(one) for one in found[:_MOST_PROBLEMS]]
    return InvalidRequestError([{**one, "loc": ["body", *one["loc"]]} for one in kept])


def _without_large_input(one: Problem) -> Problem:
    value = one.get("input")
    if _is_small(value) and not exact_json.nests_deeper(value, _DEEPEST_ECHOED):
        return one
    return {key: value for key, value in one.items() if key != "input"}


def _is_small(value: object) -> bool:
    left, waiting = _MOST_ECHOED, [value]
    while waiting:
        item = waiting.pop()
        left -= len(item) + 1 if isinstance(item, str | list | dict) else 8
        if left < 0:
            return False
        if isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return True
