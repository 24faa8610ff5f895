"""What may stand in the ``input`` of a Responses request: one row a kind of item or content part.

Everything that the official SDK's request types allow passes, and so does an item of an answer that a client sends back
(A144, W25): a member that the SDK calls required is asked for only where nothing can be done without it, as clients
strip ids and states from what they replay. A member that some converter reads is checked down to its leaves; one that
is only carried is checked for its JSON type.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import SchemaValidator

from gym_ray.dialects.conversion.schema.shapes import (
    ANY,
    FLAG,
    NUMBERS,
    OBJECT,
    TEXT,
    TEXTS,
    WHOLE,
    WHOLES,
    Check,
    Fields,
    Together,
    either,
    literal,
    may,
    need,
    objects,
    one_of,
)
from gym_ray.dialects.conversion.schema.tools import TOOL

__all__ = ["INPUT_ITEM", "TOKENS", "TOKENS_TOGETHER"]

_STATUS = literal("in_progress", "completed", "incomplete")
_PHASE = literal("commentary", "final_answer")

# A model's own turn may bring the tokens it was sampled as; half of them cannot prove anything.
TOKENS = may(prompt_token_ids=WHOLES, generation_token_ids=WHOLES, generation_log_probs=NUMBERS, routed_experts=ANY)
TOKENS_TOGETHER = Together(
    names=("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"),
    needed=("prompt_token_ids", "generation_token_ids", "generation_log_probs"),
)

_BREAKPOINT = may(prompt_cache_breakpoint=OBJECT)
_INPUT_PARTS: dict[str, Fields] = {
    "input_text": need(text=TEXT) | _BREAKPOINT,
    "input_image": may(detail=literal("low", "high", "auto", "original"), file_id=TEXT, image_url=TEXT) | _BREAKPOINT,
    "input_file": may(detail=literal("auto", "low", "high"), file_data=TEXT, file_id=TEXT, file_url=TEXT, filename=TEXT)
    | _BREAKPOINT,
}
_OUTPUT_PARTS: dict[str, Fields] = {
    "output_text": need(text=TEXT) | may(annotations=objects(OBJECT), logprobs=objects(OBJECT)),
    "refusal": need(refusal=TEXT),
}
_INPUT_CONTENT = either(text=TEXT, list_of=one_of(_INPUT_PARTS))
_ANY_CONTENT = either(text=TEXT, list_of=one_of(_INPUT_PARTS | _OUTPUT_PARTS))

_MESSAGE = may(id=TEXT, type=TEXT, status=_STATUS, phase=_PHASE)
_ASKED = need(content=_INPUT_CONTENT) | _MESSAGE
_ROLES = {
    "user": _ASKED,
    "assistant": need(content=_ANY_CONTENT) | _MESSAGE | TOKENS,
    "system": _ASKED,
    "developer": _ASKED,
}
_CALLED = may(id=TEXT, caller=OBJECT, namespace=TEXT, status=_STATUS) | may(**{"async": FLAG})
_HOSTED = may(id=TEXT, status=TEXT, caller=OBJECT, created_by=TEXT)

_ITEMS: dict[str, Fields | Check] = {
    "message": SchemaValidator(one_of(_ROLES, "role", together=TOKENS_TOGETHER)),
    "function_call": need(call_id=TEXT, name=TEXT, arguments=TEXT) | _CALLED | TOKENS,
    "function_call_output": need(output=_INPUT_CONTENT) | _HOSTED | may(call_id=TEXT, name=TEXT, namespace=TEXT),
    "custom_tool_call": need(call_id=TEXT, name=TEXT, input=TEXT) | _CALLED | TOKENS,
    "custom_tool_call_output": need(call_id=TEXT, output=_INPUT_CONTENT) | _HOSTED,
    "reasoning": may(
        id=TEXT,
        summary=objects(one_of({"summary_text": need(text=TEXT)})),
        content=objects(one_of({"reasoning_text": need(text=TEXT)})),
        encrypted_content=TEXT,
        status=_STATUS,
    )
    | TOKENS,
    "item_reference": need(id=TEXT),
    "additional_tools": need(tools=objects(TOOL)) | may(id=TEXT, role=TEXT),
    "configuration_update": may(id=TEXT, reasoning=OBJECT, text=OBJECT),
    "compaction": need(encrypted_content=TEXT) | may(id=TEXT, created_by=TEXT),
    "compaction_trigger": may(id=TEXT),
    "file_search_call": need(queries=TEXTS) | _HOSTED | may(results=objects(OBJECT)),
    "web_search_call": _HOSTED | may(action=OBJECT),
    "computer_call": need(call_id=TEXT)
    | _HOSTED
    | may(pending_safety_checks=objects(OBJECT), action=OBJECT, actions=objects(OBJECT)),
    "computer_call_output": need(call_id=TEXT, output=OBJECT)
    | _HOSTED
    | may(acknowledged_safety_checks=objects(OBJECT)),
    "tool_search_call": need(arguments=ANY) | _HOSTED | may(call_id=TEXT, execution=TEXT),
    "tool_search_output": need(tools=objects(OBJECT)) | _HOSTED | may(call_id=TEXT, execution=TEXT),
    "image_generation_call": _HOSTED
    | may(result=TEXT, action=TEXT, background=TEXT, error=OBJECT, output_format=TEXT, quality=TEXT, size=TEXT)
    | may(revised_prompt=TEXT, svg_usage=OBJECT),
    "code_interpreter_call": _HOSTED | may(code=TEXT, container_id=TEXT, outputs=objects(OBJECT)),
    "local_shell_call": need(call_id=TEXT, action=OBJECT) | _HOSTED,
    "local_shell_call_output": need(output=TEXT) | _HOSTED | may(call_id=TEXT),
    "shell_call": need(call_id=TEXT, action=OBJECT) | _HOSTED | may(environment=OBJECT),
    "shell_call_output": need(call_id=TEXT, output=objects(OBJECT)) | _HOSTED | may(max_output_length=WHOLE),
    "apply_patch_call": need(call_id=TEXT, operation=OBJECT) | _HOSTED,
    "apply_patch_call_output": need(call_id=TEXT) | _HOSTED | may(output=TEXT),
    "mcp_list_tools": need(server_label=TEXT, tools=objects(OBJECT)) | may(id=TEXT, error=ANY),
    "mcp_approval_request": need(arguments=TEXT, name=TEXT, server_label=TEXT) | may(id=TEXT),
    "mcp_approval_response": need(approval_request_id=TEXT, approve=FLAG) | may(id=TEXT, reason=TEXT),
    "mcp_call": need(arguments=TEXT, name=TEXT, server_label=TEXT)
    | may(id=TEXT, approval_request_id=TEXT, error=ANY, output=TEXT, status=TEXT),
    "program": need(call_id=TEXT, code=TEXT) | may(id=TEXT, fingerprint=TEXT),
    "program_output": need(call_id=TEXT, result=TEXT) | may(id=TEXT, status=TEXT),
}


def _kind_of(item: dict[str, Any]) -> object:
    """What an item is; a message may leave its type out, and so may a reference (A151)."""
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item else "item_reference" if "id" in item else None
    return kind


INPUT_ITEM = one_of(_ITEMS, branch_of=_kind_of, together=TOKENS_TOGETHER)
