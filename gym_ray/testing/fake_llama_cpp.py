"""llama.cpp's HTTP server as a script: for tests of what stands in front of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gym_ray.model_server.llama_cpp.engine import LlamaCppEngine
from gym_ray.model_server.serving import AppServer

__all__ = ["LAST", "MARKERS", "FakeLlamaCpp", "ids_of", "running_engine", "sse"]

MARKERS = {"<bos>": 2, "<start_of_turn>": 105, "<end_of_turn>": 106, "<eos>": 1, "</s>": 212}
LAST: dict[str, Any] = {
    "content": "",
    "tokens": [],
    "stop": True,
    "tokens_evaluated": 9,
    "tokens_predicted": 2,
    "stop_type": "eos",
    "timings": {"cache_n": 3},
}
"""The last object of a completion of two tokens, without their ids."""


def ids_of(text: str) -> list[int]:
    """Return the ids of a text: one a character."""
    return [1000 + ord(character) for character in text]


class FakeLlamaCpp:
    """Speaks llama.cpp's routes; a character is a token, and ``/completion`` does what the test says.

    Args:
        context_tokens: Context length that it tells.

    Attributes:
        app: The ASGI application.
        answer: What ``/completion`` answers.
        detokenize_answer: What ``/detokenize`` answers instead of texts.
        detokenized: What ``/detokenize`` was asked, in order.
        hang: ``/completion`` waits for it.
        healthy: What ``/health`` says.
        markers: Ids of the control tokens by name.
        props_answer: What ``/props`` answers.
        requests: Bodies of ``/completion``, in order.
        texts: Texts of further ids: tokens of several characters, as a model may sample them.
        tokenize_answer: What ``/tokenize`` answers instead of ids.
    """

    def __init__(self, context_tokens: int = 4096) -> None:
        self.props_answer: dict[str, Any] = {"default_generation_settings": {"n_ctx": context_tokens}}
        self.tokenize_answer: dict[str, Any] | None = None
        self.healthy = True
        self.markers = {name: [token] for name, token in MARKERS.items()}
        self.requests: list[dict[str, Any]] = []
        self.answer: Response = JSONResponse({**LAST, "content": "Hi.\n"})
        self.hang: asyncio.Event | None = None
        self.texts: dict[int, str] = {}
        self.detokenize_answer: Response | None = None
        self.detokenized: list[list[int]] = []
        self.app = Starlette(
            routes=[
                Route("/health", self.health),
                Route("/props", self.props),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/detokenize", self.detokenize, methods=["POST"]),
                Route("/completion", self.completion, methods=["POST"]),
            ]
        )

    async def health(self, _: Request) -> Response:
        """Say whether the model is loaded."""
        return JSONResponse({"status": "ok"} if self.healthy else {}, 200 if self.healthy else 503)

    async def props(self, _: Request) -> Response:
        """Tell the context length."""
        return JSONResponse(self.props_answer)

    async def tokenize(self, request: Request) -> Response:
        """Answer the ids of texts."""
        if self.tokenize_answer is not None:
            return JSONResponse(self.tokenize_answer)
        body = await request.json()
        ids: list[int] = []
        for piece in body["content"]:
            if isinstance(piece, int):
                ids.append(piece)
            elif body["parse_special"]:
                ids += self.markers.get(piece, [7, 8])
            else:
                ids += ids_of(piece)
        return JSONResponse({"tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        """Answer the texts of ids."""
        tokens = (await request.json())["tokens"]
        self.detokenized.append(tokens)
        if self.detokenize_answer is not None:
            return self.detokenize_answer
        names = {ids[0]: name for name, ids in self.markers.items()}
        known = {**names, **self.texts}
        return JSONResponse({"content": "".join(known.get(token) or chr(token - 1000) for token in tokens)})

    async def completion(self, request: Request) -> Response:
        """Answer as the test says."""
        self.requests.append(await request.json())
        if self.hang is not None:
            await self.hang.wait()
        return self.answer


def sse(*objects: dict[str, Any]) -> Response:
    """Return a streamed completion of these objects."""

    async def body() -> AsyncIterator[bytes]:
        for item in objects:
            yield b"data: " + json.dumps(item, ensure_ascii=False).encode() + b"\n\n"

    return StreamingResponse(body(), media_type="text/event-stream")


@asynccontextmanager
async def running_engine(llama: FakeLlamaCpp, **options: Any) -> AsyncIterator[LlamaCppEngine]:
    """Serve a script as a llama.cpp server for the block, with an engine that has these options in front of it."""
    server = AppServer(llama.app)
    await server.start()
    engine = LlamaCppEngine(server.url, model_name="gemma", **options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.aclose()
        await server.stop(grace_s=1)
