"""What a conversation may hold: items as they stand in the ``input`` of a Responses request.

An item of a kind that is known is checked where a reader relies on it and is given the members that a reader expects,
null where the item did not bring them; whatever else it brought stays. An item of an unknown kind is refused: nobody
could tell what it means. Everything runs in one compiled pass that makes new objects and never looks into what
it only carries.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import GetPydanticSchema
from pydantic_core import CoreSchema, SchemaValidator
from pydantic_core import core_schema as shape

__all__ = ["KINDS", "Conversation", "validated_conversation"]

_TEXT = shape.str_schema(strict=True)
_ANY = shape.any_schema()
_OBJECT = shape.dict_schema(_TEXT)


def _needed(check: CoreSchema) -> shape.TypedDictField:
    return shape.typed_dict_field(check, required=True)


def _null_if_absent(check: CoreSchema) -> shape.TypedDictField:
    return shape.typed_dict_field(shape.with_default_schema(shape.nullable_schema(check), default=None), required=False)


def _of_kind(kind: str) -> shape.TypedDictField:
    return shape.typed_dict_field(shape.with_default_schema(shape.literal_schema([kind]), default=kind), required=False)


def _object(**fields: shape.TypedDictField) -> CoreSchema:
    """Return the schema of an object: these members first and in this order, then whatever else it brought."""
    return shape.typed_dict_schema(fields, extra_behavior="allow", total=False)


def _parts(*parts: dict[str, CoreSchema]) -> CoreSchema:
    choices = {kind: schema for table in parts for kind, schema in table.items()}
    return shape.list_schema(shape.tagged_union_schema(choices, "type"))


def _text_or(parts: CoreSchema) -> CoreSchema:
    return shape.union_schema([_TEXT, parts])


_ASKED_PARTS = {
    "input_text": _object(text=_needed(_TEXT)),
    "input_image": _OBJECT,
    "input_file": _OBJECT,
}
_ANSWERED_PARTS = {
    "output_text": _object(
        annotations=shape.typed_dict_field(
            shape.with_default_schema(shape.list_schema(_OBJECT), default_factory=list), required=False
        ),
        text=_needed(_TEXT),
        type=_of_kind("output_text"),
        logprobs=_null_if_absent(shape.list_schema(_ANY)),
    ),
    "refusal": _object(refusal=_needed(_TEXT), type=_of_kind("refusal")),
}


def _said(content: CoreSchema, role: str) -> CoreSchema:
    return _object(
        content=_needed(content),
        role=_needed(shape.literal_schema([role])),
        type=_of_kind("message"),
        phase=_null_if_absent(_TEXT),
    )


_ANSWER = _object(
    id=_null_if_absent(_TEXT),
    content=_needed(_parts(_ANSWERED_PARTS)),
    role=_needed(shape.literal_schema(["assistant"])),
    status=_null_if_absent(_TEXT),
    type=_of_kind("message"),
    phase=_null_if_absent(_TEXT),
)
_ROLES: dict[str, CoreSchema] = {
    **{role: _said(_text_or(_parts(_ASKED_PARTS)), role) for role in ("user", "system", "developer")},
    # A model's own turn where it is one, else an assistant's turn as a client wrote it down.
    "assistant": shape.union_schema(
        [_ANSWER, _said(_text_or(_parts(_ASKED_PARTS, _ANSWERED_PARTS)), "assistant")], mode="left_to_right"
    ),
}
# What an item is -> what must be right of it.
KINDS: dict[str, CoreSchema] = {
    "message": shape.tagged_union_schema(_ROLES, "role"),
    "function_call": _object(
        arguments=_needed(_TEXT),
        call_id=_needed(_TEXT),
        name=_needed(_TEXT),
        type=_of_kind("function_call"),
        id=_null_if_absent(_TEXT),
        status=_null_if_absent(_TEXT),
        namespace=_null_if_absent(_TEXT),
    ),
    "function_call_output": _object(
        call_id=_null_if_absent(_TEXT),
        output=_needed(_text_or(_parts(_ASKED_PARTS))),
        type=_of_kind("function_call_output"),
        id=_null_if_absent(_TEXT),
        status=_null_if_absent(_TEXT),
    ),
    "reasoning": _object(
        id=_null_if_absent(_TEXT),
        summary=shape.typed_dict_field(
            shape.with_default_schema(shape.list_schema(_OBJECT), default_factory=list), required=False
        ),
        type=_of_kind("reasoning"),
        encrypted_content=_null_if_absent(_TEXT),
        content=_null_if_absent(shape.list_schema(_OBJECT)),
    ),
    **dict.fromkeys(
        (
            "additional_tools",
            "apply_patch_call",
            "apply_patch_call_output",
            "code_interpreter_call",
            "compaction",
            "compaction_trigger",
            "computer_call",
            "computer_call_output",
            "configuration_update",
            "custom_tool_call",
            "custom_tool_call_output",
            "file_search_call",
            "image_generation_call",
            "item_reference",
            "local_shell_call",
            "local_shell_call_output",
            "mcp_approval_request",
            "mcp_approval_response",
            "mcp_call",
            "mcp_list_tools",
            "program",
            "program_output",
            "shell_call",
            "shell_call_output",
            "tool_search_call",
            "tool_search_output",
            "web_search_call",
        ),
        _OBJECT,
    ),
}


def _kind_of(item: Any) -> object:
    """What an item is; a message may leave its type out, and so may a reference (A151)."""
    if not isinstance(item, dict):
        return None
    if "type" in item:
        return item["type"]
    return "message" if "role" in item else "item_reference" if "id" in item else None


_ITEM = shape.tagged_union_schema(KINDS, _kind_of)
_ITEMS = shape.list_schema(_ITEM, serialization=shape.plain_serializer_function_ser_schema(lambda items: items))
_CHECK = SchemaValidator(_ITEMS)

Conversation = Annotated[list[dict[str, Any]], GetPydanticSchema(lambda _source, _handler: _ITEMS)]
"""A list of Responses input items, for a field of a model."""


def validated_conversation(items: Any) -> list[dict[str, Any]]:
    """Return items with the members that a reader expects, null where an item did not bring them (D71).

    The list and its items are new; what an item only carries is shared with the one that came in.

    Raises:
        pydantic.ValidationError: Not a list of items, an item of an unknown kind, or one without what its kind needs.
    """
    checked: list[dict[str, Any]] = _CHECK.validate_python(items)
    return checked
