"""Where a served answer carries its tokens, and what it says without them.

Three shapes are read: Responses output, Chat Completions choices, and one Anthropic message. Token arrays are evidence
about one call, so exactly one item may carry them; everything doubtful is refused rather than guessed (B17-B24).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gym_ray.errors import SeveralCarriersError

__all__ = ["TOKEN_ARRAYS", "TOKEN_FIELDS", "extract_token_fields", "response_to_output_items", "strip_token_fields"]

TOKEN_ARRAYS: Final = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
"""The fields with an entry for each token; whatever carries tokens has all three."""
TOKEN_FIELDS: Final = (*TOKEN_ARRAYS, "routed_experts")


def extract_token_fields(response_json: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the four token fields of a served answer, or None if nothing carries token ids (B17-B20).

    Raises:
        SeveralCarriersError: More than one item carries token metadata; a ValueError.
        ValueError: The only one lacks a required field.
    """
    carriers = [item for item in _carrying_items(response_json) if _carries(item)]
    if not carriers:
        return None
    if len(carriers) > 1:
        raise SeveralCarriersError(f"{len(carriers)} items of the response carry token fields; exactly one may")
    missing = [name for name in TOKEN_ARRAYS if carriers[0].get(name) is None]
    if missing:
        raise ValueError(f"the response item that carries token fields lacks {', '.join(missing)}")
    return {name: carriers[0].get(name) for name in TOKEN_FIELDS}


def response_to_output_items(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the content of a served answer as Responses output items (B21, B22); token fields stay on them."""
    output = payload.get("output")
    if isinstance(output, list) and output:
        return [item for item in output if isinstance(item, dict)]
    if payload.get("type") == "message" and payload.get("role") == "assistant":
        return _anthropic_items(payload.get("content"))
    items = []
    for choice in _listed(payload.get("choices")):
        message = {} if choice is None else choice.get("message") if isinstance(choice, dict) else ""
        if message is None or isinstance(message, dict):
            items.append(_with_defaults(message or {}))
    return items


def strip_token_fields(items: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], int | None]:
    """Return the items without token fields, and the index of the item that carried them (B23, B24).

    The given items are left as they are; what is nested in them is shared with the result.

    Raises:
        SeveralCarriersError: Two items carry generated tokens; a ValueError.
    """
    carriers = [at for at, item in enumerate(items) if item.get("generation_token_ids") is not None]
    if len(carriers) > 1:
        raise SeveralCarriersError(
            f"output items {carriers[0]} and {carriers[1]} both carry generated tokens; exactly one may"
        )
    stripped = [{name: value for name, value in item.items() if name not in TOKEN_FIELDS} for item in items]
    return stripped, carriers[0] if carriers else None


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _carrying_items(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = [choice.get("message") for choice in _listed(response.get("choices")) if isinstance(choice, dict)]
    return [item for item in [*_listed(response.get("output")), *messages] if isinstance(item, dict)]


def _carries(item: Mapping[str, Any]) -> bool:
    return any(item.get(name) is not None for name in TOKEN_ARRAYS)


def _with_defaults(message: Mapping[str, Any]) -> dict[str, Any]:
    item = dict(message)
    item.setdefault("type", "message")
    item.setdefault("role", "assistant")
    return item


def _anthropic_items(content: object) -> list[dict[str, Any]]:
    blocks = _listed(content)
    if isinstance(content, str) and content:
        blocks = [{"type": "text", "text": content}]
    kinds = [block.get("type") if isinstance(block, dict) else None for block in blocks]
    items = []
    for block, kind in zip(blocks, kinds, strict=True):
        if kind == "thinking":
            text = block.get("thinking")
            summary = [{"type": "summary_text", "text": text}] if isinstance(text, str) else []
            items.append({"type": "reasoning", "summary": summary})
        elif kind == "redacted_thinking":
            data = block.get("data")
            items.append({"type": "reasoning", "summary": [], **({} if data is None else {"encrypted_content": data})})
    said = [block for block, kind in zip(blocks, kinds, strict=True) if kind not in ("thinking", "redacted_thinking")]
    return [*items, {"type": "message", "role": "assistant", "content": said}] if said else items
