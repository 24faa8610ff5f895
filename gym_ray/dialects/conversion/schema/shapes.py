"""The words that request schemas are written in: leaves, closed objects, lists, and choices between branches.

A schema is a check and nothing else: it says what is wrong with a value and never hands out a copy of it, so that big
integers, exact floats and lone surrogates live on in the body that the client sent (B40, B41). The checks run in
pydantic's core, whose error types and messages are the contract (A184). A choice asks the value itself which branch was
meant; so an error names that branch alone, and its location is a path that exists in the client's body (A185).

Nothing here knows a dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic_core import CoreSchema, PydanticKnownError, SchemaValidator, ValidationError
from pydantic_core import core_schema as cs

__all__ = [
    "ANY",
    "FLAG",
    "NUMBER",
    "NUMBERS",
    "OBJECT",
    "TEXT",
    "TEXTS",
    "WHOLE",
    "WHOLES",
    "Check",
    "Fields",
    "Problem",
    "Together",
    "either",
    "lines",
    "literal",
    "mapping",
    "may",
    "need",
    "objects",
    "one_of",
    "problems",
    "shape",
]

Fields: TypeAlias = dict[str, cs.TypedDictField]
"""Members of a closed object."""

Problem: TypeAlias = dict[str, Any]
"""What pydantic says of one field: ``type``, ``loc``, ``msg``, ``input``, ``ctx``."""

Check: TypeAlias = SchemaValidator
"""Raises ``ValidationError`` for a wrong value; what it returns is thrown away."""

_MOST_ELEMENTS_AT_ONCE = 512  # so that a list of a million wrong elements costs 512 errors, not a million
_LONGEST_TAG = 60  # characters


def _instance(kind: type, error: str) -> CoreSchema:
    # Core's own string check refuses lone surrogates, and its dict check copies; a type test does neither.
    return cs.custom_error_schema(cs.is_instance_schema(kind), custom_error_type=error)


ANY = cs.any_schema()
TEXT = _instance(str, "string_type")
OBJECT = _instance(dict, "dict_type")
FLAG = cs.bool_schema(strict=True)
WHOLE = cs.int_schema(strict=True)
NUMBER = cs.float_schema(strict=True, allow_inf_nan=False)
TEXTS = cs.list_schema(TEXT, strict=True, fail_fast=True)
NUMBERS = cs.list_schema(NUMBER, strict=True, fail_fast=True)
WHOLES = cs.list_schema(WHOLE, strict=True, fail_fast=True)


def literal(*values: str) -> CoreSchema:
    """Return the schema of one of ``values``."""
    return cs.literal_schema(list(values))


def mapping(value: CoreSchema) -> CoreSchema:
    """Return the schema of an object with any keys whose every value is ``value``."""
    return cs.dict_schema(TEXT, value, strict=True)


def need(**fields: CoreSchema) -> Fields:
    """Return members that must be there."""
    return {name: cs.typed_dict_field(schema, required=True) for name, schema in fields.items()}


def may(**fields: CoreSchema) -> Fields:
    """Return members that may be there; each may be null too, as clients dump unset members as null."""
    return {name: cs.typed_dict_field(cs.nullable_schema(schema), required=False) for name, schema in fields.items()}


def shape(fields: Fields) -> CoreSchema:
    """Return the schema of an object with these members and no others."""
    return cs.typed_dict_schema(fields, extra_behavior="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class Together:
    """Members of which none is worth anything alone: any of ``names`` that is set asks for all of ``needed`` (A186)."""

    names: tuple[str, ...]
    needed: tuple[str, ...]

    def __call__(self, value: dict[str, Any]) -> dict[str, Any]:
        """Raise for the members that are missing beside those that are set."""
        if any(value.get(name) is not None for name in self.names):
            missing = [name for name in self.needed if value.get(name) is None]
            if missing:
                raise lines([{"type": "missing", "loc": (name,), "input": value} for name in missing])
        return value


def objects(element: CoreSchema) -> CoreSchema:
    """Return the schema of a list of objects; past the first 512 elements with a problem no more are looked at."""
    check = SchemaValidator(cs.list_schema(element, strict=True))

    def each(value: object) -> object:
        if not isinstance(value, list) or len(value) <= _MOST_ELEMENTS_AT_ONCE:
            check.validate_python(value)
            return value
        for start in range(0, len(value), _MOST_ELEMENTS_AT_ONCE):
            try:
                check.validate_python(value[start : start + _MOST_ELEMENTS_AT_ONCE])
            except ValidationError as error:
                raise lines([_moved(line, start) for line in error.errors(include_url=False)]) from None
        return value

    return cs.no_info_plain_validator_function(each)


def _moved(line: Mapping[str, Any], by: int) -> Problem:
    index, *rest = line["loc"]
    return {**line, "loc": (index + by, *rest)}


def either(
    text: CoreSchema | None = None, list_of: CoreSchema | None = None, object_of: CoreSchema | None = None
) -> CoreSchema:
    """Return the schema of a string, a list or an object, whichever are given; the value's JSON type decides."""
    offered = (
        (str, "string_type", text),
        (list, "list_type", None if list_of is None else objects(list_of)),
        (dict, "dict_type", object_of),
    )
    branches = [(kind, error, SchemaValidator(schema)) for kind, error, schema in offered if schema is not None]

    def check(value: object) -> object:
        for kind, _, branch in branches:
            if isinstance(value, kind):
                branch.validate_python(value)
                return value
        raise lines([{"type": error, "loc": (), "input": value} for _, error, _ in branches])

    return cs.no_info_plain_validator_function(check)


def one_of(
    branches: Mapping[str, Fields | Check],
    member: str = "type",
    branch_of: Callable[[dict[str, Any]], object] | None = None,
    together: Together | None = None,
) -> CoreSchema:
    """Return the schema of an object whose own ``member`` names its branch.

    Args:
        branches: Members of each branch beside ``member``, or a check of its own.
        member: The telling member.
        branch_of: Tells the branch where ``member`` alone does not; None from it means that nothing does.
        together: Holds for each branch that has all its members.
    """
    telling = {member: cs.typed_dict_field(cs.nullable_schema(TEXT), required=False)}
    checks = {
        name: branch if isinstance(branch, SchemaValidator) else SchemaValidator(_branch(telling | branch, together))
        for name, branch in branches.items()
    }
    expected = ", ".join(repr(name) for name in branches)
    said = repr(member)

    def check(value: object) -> object:
        if not isinstance(value, dict):
            raise PydanticKnownError("dict_type")
        tag = value.get(member) if branch_of is None else branch_of(value)
        if tag is None:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": said})
        found = checks.get(tag) if isinstance(tag, str) else None
        if found is None:
            told = ascii(tag)[1:-1] if isinstance(tag, str) else type(tag).__name__
            context = {"discriminator": said, "tag": told[:_LONGEST_TAG], "expected_tags": expected}
            raise PydanticKnownError("union_tag_invalid", context)
        found.validate_python(value)
        return value

    return cs.no_info_plain_validator_function(check)


def _branch(fields: Fields, together: Together | None) -> CoreSchema:
    closed = shape(fields)
    if together is None or not fields.keys() >= set(together.names):
        return closed
    return cs.no_info_after_validator_function(together, closed)


def lines(found: Sequence[Mapping[str, Any]]) -> ValidationError:
    """Return the error that says several things at once; a validator around it adds where it stands."""
    kept = [{key: line[key] for key in ("type", "loc", "input", "ctx") if key in line} for line in found]
    return ValidationError.from_exception_data("request", kept)  # type: ignore[arg-type]  # plain dicts of that form


def problems(check: Check, value: object) -> list[Problem]:
    """Return everything that is wrong with ``value``, [] when nothing is."""
    try:
        check.validate_python(value)
    except ValidationError as error:
        return [dict(line) for line in error.errors(include_url=False)]
    return []
