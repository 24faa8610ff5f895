"""Upstreams with answers of their own: numbered ones that take their time, and ones that fail as they are told."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

__all__ = ["failing_upstream", "numbered_upstream"]


def numbered_upstream(
    latency_s: float, arrived: set[Any] | None = None, answered: dict[str, Any] | None = None
) -> Starlette:
    """An OpenAI-compatible upstream that takes its time and gives every answer an id of its own.

    Args:
        latency_s: The time it takes.
        arrived: Where it notes the input of each request that came to it.
        answered: Where it notes, by the id of each answer, the input that it answers.
    """
    numbers = itertools.count()

    def answer() -> dict[str, Any]:
        usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
        text = {"type": "output_text", "text": "yes", "annotations": []}
        item = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
        name = f"resp_{next(numbers)}"
        return {"id": name, "object": "response", "status": "completed", "output": [item], "usage": usage}

    async def responses(request: Request) -> Response:
        body = await request.json()
        if arrived is not None:
            arrived.add(body.get("input"))
        await asyncio.sleep(latency_s)  # the engine's own working time, nothing waits for it
        whole = answer()
        if answered is not None:
            answered[whole["id"]] = body.get("input")
        if not body.get("stream"):
            return JSONResponse(whole)
        events = [
            {"type": "response.created", "response": whole | {"status": "in_progress", "output": [], "usage": None}},
            {"type": "response.completed", "response": whole},
        ]

        async def chunks() -> Any:
            for event in events:
                yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
                await asyncio.sleep(latency_s)

        return StreamingResponse(chunks(), media_type="text/event-stream")

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "numbered", "object": "model"}]})

    return Starlette(routes=[Route("/v1/responses", responses, methods=["POST"]), Route("/v1/models", models)])


def failing_upstream() -> Starlette:
    """An upstream whose answer depends on the first word of the input: a status, ``hang`` or ``cut``."""

    async def responses(request: Request) -> Response:
        word = (await request.json())["input"].split()[0]
        if word == "hang":
            await request.is_disconnected()
            await asyncio.Event().wait()
        if word == "cut":

            async def half() -> Any:
                yield b'data: {"type":"response.created","response":{"id":"resp_half"}}\n\n'
                raise ConnectionError("the upstream dies here")

            return StreamingResponse(half(), media_type="text/event-stream")
        error = {"error": {"message": f"told to answer {word}", "type": "scripted", "code": None}}
        return JSONResponse(error, status_code=int(word))

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": []})

    return Starlette(routes=[Route("/v1/responses", responses, methods=["POST"]), Route("/v1/models", models)])
