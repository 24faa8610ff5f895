"""The schema of a Responses request body (A184): its fields, strictly typed, and nothing else.

Sampling fields that only some engines know (``top_k``, ``min_p``, ``repetition_penalty`` …) are no part of it: a plain
request with one of them is a 422, a streamed one is served without it (A149). A server that takes more fields says so
through the ``extensions`` of ``prepare``.
"""

from __future__ import annotations

from pydantic_core import SchemaValidator

from gym_ray.dialects.conversion.schema.items import INPUT_ITEM
from gym_ray.dialects.conversion.schema.shapes import (
    ANY,
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    TEXTS,
    WHOLE,
    Fields,
    either,
    literal,
    mapping,
    may,
    need,
    objects,
    one_of,
    shape,
)
from gym_ray.dialects.conversion.schema.tools import INNER_TOOL, TOOL, TOOL_CHOICE

__all__ = [
    "INNER_TOOL_CHECK",
    "ITEM_CHECK",
    "RESPONSES_CHECK",
    "RESPONSES_FIELDS",
    "RESPONSES_OUTER_CHECK",
    "TOOL_CHECK",
]

_SUMMARY = literal("auto", "concise", "detailed")
_REASONING = may(
    context=literal("auto", "current_turn", "all_turns"),
    effort=literal("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    generate_summary=_SUMMARY,
    mode=TEXT,
    summary=_SUMMARY,
)
_TEXT_FORMATS: dict[str, Fields] = {
    "text": {},
    "json_object": {},
    "json_schema": need(name=TEXT, schema=OBJECT) | may(description=TEXT, strict=FLAG),
}
_TEXT = may(format=one_of(_TEXT_FORMATS), verbosity=literal("low", "medium", "high"))

_SCALARS = (
    may(model=TEXT, instructions=TEXT, user=TEXT, previous_response_id=TEXT, safety_identifier=TEXT)
    | may(temperature=NUMBER, top_p=NUMBER, top_logprobs=WHOLE, max_output_tokens=WHOLE, max_tool_calls=WHOLE)
    | may(background=FLAG, parallel_tool_calls=FLAG, store=FLAG)
    | may(truncation=literal("auto", "disabled"), prompt_cache_key=TEXT)
    | may(prompt_cache_retention=literal("in_memory", "24h"))
    | may(service_tier=literal("auto", "default", "flex", "scale", "priority", "fast", "ultrafast"))
    | may(include=TEXTS, metadata=mapping(TEXT))
)
_OBJECTS = (
    may(reasoning=shape(_REASONING), text=shape(_TEXT), tool_choice=TOOL_CHOICE)
    | may(prompt=shape(need(id=TEXT) | may(variables=OBJECT, version=TEXT)))
    | may(conversation=either(text=TEXT, object_of=shape(need(id=TEXT))))
    | may(stream_options=shape(may(include_obfuscation=FLAG)))
    | may(context_management=objects(OBJECT), access_programs=OBJECT, background_options=OBJECT, image=OBJECT)
    | may(moderation=OBJECT, prompt_cache_options=OBJECT)
)
_FIELDS = _SCALARS | _OBJECTS

RESPONSES_FIELDS = frozenset({"input", "tools", *_FIELDS})
ITEM_CHECK = SchemaValidator(INPUT_ITEM)
TOOL_CHECK = SchemaValidator(TOOL)
INNER_TOOL_CHECK = SchemaValidator(INNER_TOOL)
RESPONSES_CHECK = SchemaValidator(
    shape(need(input=either(text=TEXT, list_of=INPUT_ITEM)) | may(tools=objects(TOOL)) | _FIELDS)
)
# For a body whose items and tools were looked at one by one.
RESPONSES_OUTER_CHECK = SchemaValidator(
    shape(need(input=either(text=TEXT, list_of=ANY)) | may(tools=objects(ANY)) | _FIELDS)
)
