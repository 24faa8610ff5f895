"""Tells a whole Messages answer as its stream (A144, A145, W25)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gym_ray.dialects.frames import json_text, typed_frame

__all__ = ["replay"]

_INPUT_BLOCKS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_ENDS: Final = ("container", "stop_details")  # what a message_delta may say besides why the answer ended


def replay(answer: Mapping[str, Any]) -> list[bytes]:
    """Return the events of an answer; see :func:`gym_ray.dialects.replay.replay_frames`."""
    frames = [typed_frame("message_start", message=_opened(answer))]
    content = answer.get("content")
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    for index, block in enumerate(blocks):
        frames += _block(index, block)
    return [*frames, _delta(answer), typed_frame("message_stop")]


def _usage(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    usage = answer.get("usage")
    return usage if isinstance(usage, Mapping) else {}


def _opened(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message as it is before its first block: no reason to stop and no output yet (W25).

    A count that the answer does not have is null; clients look into ``usage`` without asking whether it is there.
    """
    usage = _usage(answer)
    output = None if usage.get("output_tokens") is None else 0
    return {
        "type": "message",
        "role": "assistant",
        **answer,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": None, **usage, "output_tokens": output},
    }


def _delta(answer: Mapping[str, Any]) -> bytes:
    delta = {"stop_reason": answer.get("stop_reason"), "stop_sequence": answer.get("stop_sequence")}
    delta.update({name: answer[name] for name in _ENDS if answer.get(name) is not None})
    return typed_frame("message_delta", delta=delta, usage={"output_tokens": _usage(answer).get("output_tokens")})


def _block(index: int, block: Mapping[str, Any]) -> Iterator[bytes]:
    shell, deltas = _split(block)
    yield typed_frame("content_block_start", index=index, content_block=shell)
    for delta in deltas:
        yield typed_frame("content_block_delta", index=index, delta=delta)
    yield typed_frame("content_block_stop", index=index)


def _split(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Split a block into what opens it and what follows; a kind without deltas of its own is opened whole."""
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return _text(block)
    if kind == "thinking" and isinstance(block.get("thinking"), str):
        return _thinking(block)
    if isinstance(kind, str) and kind in _INPUT_BLOCKS:
        value = block.get("input")
        text = json_text({} if value is None else value)
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
    return dict(block), []


def _text(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    shell = {**block, "text": ""}
    deltas = [{"type": "text_delta", "text": block["text"]}]
    citations = block.get("citations")
    if isinstance(citations, list):
        shell["citations"] = []
        deltas += [{"type": "citations_delta", "citation": citation} for citation in citations]
    return shell, deltas


def _thinking(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A signature follows its text (A145); an empty one has no event of its own and stays where clients look for it."""
    shell = {**block, "thinking": ""}
    deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
    if block.get("signature"):
        deltas.append({"type": "signature_delta", "signature": shell.pop("signature")})
    return shell, deltas
