"""The schema of a Chat Completions request body (A184): its fields, strictly typed, and nothing else.

Beside what the official SDK's request types allow, an assistant's message may carry what answers carry, so that a
client can send a message back as it got it: its reasoning, its annotations, its tokens (A186), the index of a call.

Sampling fields that only some engines know (``top_k``, ``min_p``, ``repetition_penalty`` …) are no part of it: a plain
request with one of them is a 422, a streamed one is served without it (A148).
"""

from __future__ import annotations

from pydantic_core import SchemaValidator

from gym_ray.dialects.conversion.schema.items import TOKENS, TOKENS_TOGETHER
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

__all__ = ["CHAT_CHECK", "CHAT_EXTENSIONS", "CHAT_FIELDS", "CHAT_OUTER_CHECK", "CHAT_TOOL_CHECK", "MESSAGE_CHECK"]

CHAT_EXTENSIONS = frozenset({"chat_template_kwargs", "thinking", "output_config"})
"""Provider fields that a plain request may have; a streamed one is served without them (A148)."""

_BREAKPOINT = may(prompt_cache_breakpoint=OBJECT)
_TEXT_PART: dict[str, Fields] = {"text": need(text=TEXT) | _BREAKPOINT}
_USER_PARTS = _TEXT_PART | {
    "image_url": need(image_url=shape(need(url=TEXT) | may(detail=literal("auto", "low", "high", "original"))))
    | _BREAKPOINT,
    "input_audio": need(input_audio=shape(need(data=TEXT, format=TEXT))) | _BREAKPOINT,
    "file": need(file=shape(may(file_data=TEXT, file_id=TEXT, filename=TEXT))) | _BREAKPOINT,
}
_ASSISTANT_PARTS = _TEXT_PART | {"refusal": need(refusal=TEXT)}
_TEXT_CONTENT = either(text=TEXT, list_of=one_of(_TEXT_PART))

_CALLS: dict[str, Fields] = {
    "function": need(id=TEXT, function=shape(need(name=TEXT, arguments=TEXT))) | may(index=WHOLE),
    "custom": need(id=TEXT, custom=shape(need(name=TEXT, input=TEXT))) | may(index=WHOLE),
}
_ANSWERED = may(annotations=objects(OBJECT), reasoning=ANY, reasoning_content=TEXT)
_ROLES: dict[str, Fields] = {
    "developer": need(content=_TEXT_CONTENT) | may(name=TEXT),
    "system": need(content=_TEXT_CONTENT) | may(name=TEXT),
    "user": need(content=either(text=TEXT, list_of=one_of(_USER_PARTS))) | may(name=TEXT),
    "assistant": may(content=either(text=TEXT, list_of=one_of(_ASSISTANT_PARTS)), tool_calls=objects(one_of(_CALLS)))
    | may(name=TEXT, refusal=TEXT, audio=OBJECT, function_call=shape(need(name=TEXT, arguments=TEXT)))
    | _ANSWERED
    | TOKENS,
    "tool": need(content=_TEXT_CONTENT, tool_call_id=TEXT) | may(name=TEXT),
    "function": need(name=TEXT) | may(content=TEXT),
}
_MESSAGE = one_of(_ROLES, "role", together=TOKENS_TOGETHER)

_FUNCTION = need(name=TEXT) | may(description=TEXT, parameters=OBJECT, strict=FLAG)
_GRAMMAR = shape(need(definition=TEXT, syntax=literal("lark", "regex")))
_CUSTOM = need(name=TEXT) | may(description=TEXT, format=one_of({"text": {}, "grammar": need(grammar=_GRAMMAR)}))
_TOOL = one_of({"function": need(function=shape(_FUNCTION)), "custom": need(custom=shape(_CUSTOM))})

_NAMED = shape(need(name=TEXT))
_ALLOWED = shape(need(mode=literal("auto", "required"), tools=objects(OBJECT)))
_CHOICES: dict[str, Fields] = {
    "function": need(function=_NAMED),
    "custom": need(custom=_NAMED),
    "allowed_tools": need(allowed_tools=_ALLOWED),
}
_FORMATS: dict[str, Fields] = {
    "text": {},
    "json_object": {},
    "json_schema": need(json_schema=shape(need(name=TEXT) | may(description=TEXT, schema=OBJECT, strict=FLAG))),
}

_SCALARS = (
    may(model=TEXT, user=TEXT, safety_identifier=TEXT, prompt_cache_key=TEXT)
    | may(temperature=NUMBER, top_p=NUMBER, frequency_penalty=NUMBER, presence_penalty=NUMBER)
    | may(max_tokens=WHOLE, max_completion_tokens=WHOLE, n=WHOLE, seed=WHOLE, top_logprobs=WHOLE)
    | may(logprobs=FLAG, parallel_tool_calls=FLAG, store=FLAG)
    | may(reasoning_effort=literal("none", "minimal", "low", "medium", "high", "xhigh", "max"))
    | may(verbosity=literal("low", "medium", "high"), prompt_cache_retention=literal("in_memory", "24h"))
    | may(service_tier=literal("auto", "default", "flex", "scale", "priority", "fast"))
    | may(stop=either(text=TEXT, list_of=TEXT), modalities=TEXTS, metadata=mapping(TEXT), logit_bias=mapping(NUMBER))
)
_OBJECTS = (
    may(response_format=one_of(_FORMATS))
    | may(tool_choice=either(text=literal("none", "auto", "required"), object_of=one_of(_CHOICES)))
    | may(functions=objects(shape(_FUNCTION)), function_call=either(text=literal("none", "auto"), object_of=_NAMED))
    | may(prediction=shape(need(content=_TEXT_CONTENT) | may(type=literal("content"))))
    | may(stream_options=shape(may(include_obfuscation=FLAG, include_usage=FLAG)))
    | may(audio=OBJECT, moderation=OBJECT, prompt_cache_options=OBJECT, web_search_options=OBJECT)
)
_FIELDS = _SCALARS | _OBJECTS
_PROVIDER = may(**dict.fromkeys(sorted(CHAT_EXTENSIONS), OBJECT))

CHAT_FIELDS = frozenset({"messages", "tools", *_FIELDS})
MESSAGE_CHECK = SchemaValidator(_MESSAGE)
CHAT_TOOL_CHECK = SchemaValidator(_TOOL)
CHAT_CHECK = SchemaValidator(shape(need(messages=objects(_MESSAGE)) | may(tools=objects(_TOOL)) | _FIELDS | _PROVIDER))
# For a body whose messages and tools were looked at one by one.
CHAT_OUTER_CHECK = SchemaValidator(shape(need(messages=objects(ANY)) | may(tools=objects(ANY)) | _FIELDS))
