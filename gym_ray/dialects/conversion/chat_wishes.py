"""What a Responses request may ask of a Chat engine although Chat has no word for it, because it loses nothing.

Harnesses send these members with every request, so a refusal would shut them out. All else that Chat lacks is refused
where requests are converted (A165).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["heard_in_chat"]

_KEPT_REASONING: Final = ["reasoning.encrypted_content"]
_SUMMARIES: Final = ("auto", "concise", "detailed")
_RESULTS: Final = ("function_call_output", "custom_tool_call_output")


def heard_in_chat(hub: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a Responses request in words that have a Chat form.

    Reasoning of a Chat engine comes in the clear and whole: a client that asks for a summary of it, or for the means to
    send it back, has both without asking. An image in a tool's result has no place in a tool message, so a user's
    message behind the results of that turn shows it.

    Args:
        hub: The request; it is not changed.
    """
    heard = dict(hub)
    if heard.get("include") == _KEPT_REASONING:
        del heard["include"]
    reasoning = heard.get("reasoning")
    if isinstance(reasoning, Mapping):
        heard["reasoning"] = {
            name: value
            for name, value in reasoning.items()
            if name not in ("summary", "generate_summary") or value not in _SUMMARIES
        }
    if isinstance(heard.get("input"), list):
        heard["input"] = _with_images_shown(heard["input"])
    return heard


def _with_images_shown(items: list[Any]) -> list[Any]:
    shown: list[Any] = []
    images: list[Any] = []
    for item in items:
        is_result = isinstance(item, Mapping) and item.get("type") in _RESULTS
        if images and not is_result:
            shown.append(_message(images))
            images = []
        if is_result and isinstance(item.get("output"), list):
            found = [part for part in item["output"] if _is_image(part)]
            images += found
            item = {**item, "output": [part for part in item["output"] if not _is_image(part)] or ""} if found else item
        shown.append(item)
    return [*shown, _message(images)] if images else shown


def _message(images: list[Any]) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": images}


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "input_image"
