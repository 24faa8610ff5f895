"""What may stand in the ``tools`` and ``tool_choice`` of a Responses request: one row a kind of tool.

A function tool needs only its name; the SDK also asks for ``parameters`` and ``strict``, which engines do without.
"""

from __future__ import annotations

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
)

__all__ = ["INNER_TOOL", "TOOL", "TOOL_CHOICE"]

_CALLABLE = need(name=TEXT) | may(description=TEXT, defer_loading=FLAG, allowed_callers=TEXTS) | may(**{"async": FLAG})
_FUNCTION = _CALLABLE | may(parameters=OBJECT, strict=FLAG, output_schema=OBJECT)
_CUSTOM = _CALLABLE | may(
    format=one_of({"text": {}, "grammar": need(definition=TEXT, syntax=literal("lark", "regex"))})
)
_SEARCH = may(search_context_size=TEXT, user_location=OBJECT)
_WEB_SEARCH = _SEARCH | may(external_web_access=FLAG, filters=OBJECT)
_WEB_SEARCH_PREVIEW = _SEARCH | may(search_content_types=TEXTS)

INNER_TOOL = one_of({"function": _FUNCTION | may(parameters=ANY), "custom": _CUSTOM})
"""A tool of a namespace."""

_TOOLS: dict[str, Fields] = {
    "function": _FUNCTION,
    "custom": _CUSTOM,
    "namespace": need(name=TEXT, tools=objects(INNER_TOOL)) | may(description=TEXT),
    "file_search": need(vector_store_ids=TEXTS) | may(filters=OBJECT, max_num_results=WHOLE, ranking_options=OBJECT),
    "computer": {},
    "computer_use_preview": need(display_height=NUMBER, display_width=NUMBER, environment=TEXT),
    "web_search": _WEB_SEARCH,
    "web_search_2025_08_26": _WEB_SEARCH,
    "web_search_preview": _WEB_SEARCH_PREVIEW,
    "web_search_preview_2025_03_11": _WEB_SEARCH_PREVIEW,
    "mcp": need(server_label=TEXT)
    | may(allowed_callers=TEXTS, allowed_tools=either(list_of=TEXT, object_of=OBJECT), authorization=TEXT)
    | may(connector_id=TEXT, defer_loading=FLAG, headers=mapping(TEXT), server_description=TEXT, server_url=TEXT)
    | may(require_approval=either(text=TEXT, object_of=OBJECT), tunnel_id=TEXT),
    "code_interpreter": need(container=either(text=TEXT, object_of=OBJECT)) | may(allowed_callers=TEXTS),
    "programmatic_tool_calling": {},
    "image_generation": may(action=TEXT, background=TEXT, complexity=TEXT, frame_count=WHOLE, frame_duration_ms=WHOLE)
    | may(input_fidelity=TEXT, input_image_mask=OBJECT, model=TEXT, moderation=TEXT, output_compression=WHOLE)
    | may(output_format=TEXT, partial_images=WHOLE, quality=TEXT, size=TEXT, svg=OBJECT),
    "local_shell": {},
    "shell": may(allowed_callers=TEXTS, environment=OBJECT),
    "tool_search": may(description=TEXT, execution=TEXT, parameters=ANY),
    "apply_patch": may(allowed_callers=TEXTS),
}
TOOL = one_of(_TOOLS)

_HOSTED_CHOICES = (
    "file_search web_search_preview web_search_preview_2025_03_11 computer computer_use_preview computer_use"
    " image_generation code_interpreter programmatic_tool_calling apply_patch shell"
)
# The namespace of a chosen tool is no member of the SDK's type; it is taken, as the answer's calls carry it.
_NAMED = need(name=TEXT) | may(namespace=TEXT)
_CHOICES: dict[str, Fields] = {
    "function": _NAMED,
    "custom": _NAMED,
    "mcp": need(server_label=TEXT) | may(name=TEXT),
    "allowed_tools": need(mode=literal("auto", "required"), tools=objects(OBJECT)),
} | {kind: {} for kind in _HOSTED_CHOICES.split()}
TOOL_CHOICE = either(text=literal("none", "auto", "required"), object_of=one_of(_CHOICES))
