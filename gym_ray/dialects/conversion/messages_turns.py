"""Reads the input of a Responses body as the system blocks and messages of a Messages body (A163 for this dialect)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gym_ray.dialects import fields, reading
from gym_ray.dialects.conversion.carried import shown
from gym_ray.dialects.conversion.messages_images import image_source
from gym_ray.dialects.conversion.messages_thinking import thinking_block

__all__ = ["Conversation"]

_TEXTS: Final = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Kind of content part -> the member that holds its text."""

_SYSTEM: Final = ("system", "developer")
_SPEAKERS: Final = ("user", "assistant")


class Conversation:
    """The conversation under way: neighbouring items of one role share a message, empty texts are left out.

    Args:
        remote_images: Whether images may be named by a URL that the engine has to fetch.
        unsigned_thinking: Whether reasoning without a signature is told; an engine that signs refuses it.

    Attributes:
        system: Text blocks of all system and developer messages.
        messages: The messages, alternating between user and assistant.
    """

    def __init__(self, *, remote_images: bool, unsigned_thinking: bool) -> None:
        self.system: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self._results = 0  # tool results at the head of the message that is being filled
        self._remote_images = remote_images
        self._unsigned_thinking = unsigned_thinking
        self._readers: Mapping[str, Callable[[Mapping[str, Any], str], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._function_call,
            "custom_tool_call": self._custom_call,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
        }

    def instruct(self, text: str) -> None:
        """Add a system text; an empty one is left out."""
        if text:
            self.system.append({"type": "text", "text": text})

    def take(self, value: object) -> None:
        """Add a Responses ``input``: a string, or a list of items.

        Raises:
            UnsupportedRequestError: An item is malformed (422) or has no form in Messages (400); the message names its
                path.
        """
        if isinstance(value, str):
            self._say("user", _text_blocks(value))
            return
        for index, raw in enumerate(fields.as_list(value, "input")):
            path = f"input[{index}]"
            item = fields.as_object(raw, path)
            kind = "message" if item.get("type") is None else item["type"]
            reader = self._readers.get(kind) if isinstance(kind, str) else None
            if reader is None:
                raise fields.unsupported(f"{path}.type", f"{shown(kind)} items have no form in the engine's dialect")
            reader(item, path)

    def _say(self, role: str, blocks: list[dict[str, Any]]) -> None:
        if blocks:
            self._speaker(role).extend(blocks)

    def _speaker(self, role: str) -> list[dict[str, Any]]:
        """Return the content of the message that is this role's turn to fill."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": []})
            self._results = 0
        content: list[dict[str, Any]] = self.messages[-1]["content"]
        return content

    def _message(self, item: Mapping[str, Any], path: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role in _SYSTEM:
            for block in self._blocks(content, f"{path}.content", images=False):
                self.instruct(block["text"])
        elif role in _SPEAKERS:
            self._say(str(role), self._blocks(content, f"{path}.content", images=role == "user"))
        else:
            raise fields.malformed(f"{path}.role", f"{shown(role)} is none of {', '.join(_SPEAKERS + _SYSTEM)}")

    def _blocks(self, content: object, path: str, *, images: bool) -> list[dict[str, Any]]:
        if isinstance(content, str):
            return _text_blocks(content)
        blocks: list[dict[str, Any]] = []
        for index, raw in enumerate(fields.as_list(content, path)):
            place = f"{path}[{index}]"
            part = fields.as_object(raw, place)
            kind = part.get("type")
            if isinstance(kind, str) and kind in _TEXTS:
                member = _TEXTS[kind]
                blocks += _text_blocks(fields.as_string(part.get(member), f"{place}.{member}"))
            elif kind == "input_image" and images:
                blocks.append({"type": "image", "source": self._source(part, place)})
            else:
                raise fields.unsupported(f"{place}.type", f"{shown(kind)} parts have no form here; use text")
        return blocks

    def _source(self, part: Mapping[str, Any], path: str) -> dict[str, Any]:
        if part.get("image_url") is None and part.get("file_id") is not None:
            raise fields.unsupported(f"{path}.file_id", "names a file of another server; send the image as base64")
        url = fields.as_string(part.get("image_url"), f"{path}.image_url")
        return image_source(url, f"{path}.image_url", remote=self._remote_images)

    def _reasoning(self, item: Mapping[str, Any], path: str) -> None:
        del path  # reasoning is opaque: what cannot be read of it is left out
        block = thinking_block(item)
        if block is not None and (self._unsigned_thinking or block.get("signature") != ""):
            self._say("assistant", [block])

    def _function_call(self, item: Mapping[str, Any], path: str) -> None:
        arguments = fields.as_string(item.get("arguments"), f"{path}.arguments")
        self._call(item, path, reading.parse_arguments(arguments))

    def _custom_call(self, item: Mapping[str, Any], path: str) -> None:
        self._call(item, path, {"input": fields.as_string(item.get("input"), f"{path}.input")})

    def _call(self, item: Mapping[str, Any], path: str, arguments: dict[str, Any]) -> None:
        call_id = fields.as_string(item.get("call_id"), f"{path}.call_id")
        name = fields.as_string(item.get("name"), f"{path}.name")
        self._say("assistant", [{"type": "tool_use", "id": call_id, "name": name, "input": arguments}])

    def _output(self, item: Mapping[str, Any], path: str) -> None:
        output = item.get("output")
        block: dict[str, Any] = {
            "type": "tool_result",
            "tool_use_id": fields.as_string(item.get("call_id"), f"{path}.call_id"),
            "content": output if isinstance(output, str) else self._blocks(output, f"{path}.output", images=True),
        }
        if item.get("status") == "incomplete":
            block["is_error"] = True
        self._answer_call(block)

    def _answer_call(self, block: dict[str, Any]) -> None:
        """Put a result before what the user said in the same turn: Messages wants results first."""
        self._speaker("user").insert(self._results, block)
        self._results += 1


def _text_blocks(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []
