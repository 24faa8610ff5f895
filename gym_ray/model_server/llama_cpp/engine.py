"""The embedded model as an engine: all three dialects, built here from exact tokens.

A request becomes a neutral prompt, the prompt becomes ids by our own template, ``/completion`` continues them under
our own grammar, and the result is dressed in the client's dialect. What the client is told about tokens are the
engine's own counters. A training call is told its ids as well, and continues those of its parent where it can.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import httpx

from gym_ray import exact_json
from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.neutral import Generation, PromptRequest, Sampling
from gym_ray.dialects.synthesis import AnswerWriter, answer_writer, read_request
from gym_ray.errors import EngineError, UnsupportedRequestError
from gym_ray.model_server.engine import EngineAnswer, EngineRequest
from gym_ray.model_server.headers import JSON_HEADERS, SSE_HEADERS
from gym_ray.model_server.llama_cpp.client import LlamaCppClient
from gym_ray.model_server.llama_cpp.completion import CompletionReader, SentPrompt
from gym_ray.model_server.llama_cpp.grammar import build_grammar
from gym_ray.model_server.llama_cpp.template import END, START, Piece, TurnEnd, render
from gym_ray.model_server.llama_cpp.token_in import continue_parent
from gym_ray.token_id_capture.exact_tokens import ParentTokens

__all__ = ["LlamaCppEngine"]

_log = logging.getLogger(__name__)
_SEEDS: Final = 2**32 - 1  # llama.cpp's seeds have 32 bits, and the highest one means a random seed
_BOS: Final = "<bos>"
_OTHER_ENDS: Final = ("<eos>", "</s>")


@dataclass(frozen=True, slots=True)
class _ModelFacts:
    context_tokens: int
    markers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Job:
    """One call ready to be sent."""

    body: dict[str, Any]
    reader: CompletionReader
    writer: AnswerWriter
    prompt_tokens: int


class LlamaCppEngine:
    """Implements :class:`gym_ray.model_server.engine.Engine` over one llama.cpp server.

    Args:
        base_url: Root URL of the server.
        model_name: Name that ``/v1/models`` lists, and that answers carry when a request names none.
        default_max_tokens: Length of an answer whose request sets no bound.
        request_timeout_s: Longest silence of the server, waiting in its line included.
        max_connections: Calls under way at the same time.
        turn_end: ``line`` for a base model, ``marker`` for one that has learned Gemma's end-of-turn marker.
        on_generation: Called with each finished generation before its last byte is given out; must not block.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model_name: str,
        default_max_tokens: int = 256,
        request_timeout_s: float = 600.0,
        max_connections: int = 256,
        turn_end: TurnEnd = "line",
        on_generation: Callable[[EngineRequest, Generation], None] | None = None,
    ) -> None:
        self._base_url, self._model_name = base_url, model_name
        self._default_max_tokens, self._turn_end = default_max_tokens, turn_end
        self._request_timeout_s, self._max_connections = request_timeout_s, max_connections
        self._on_generation = on_generation
        self._client: LlamaCppClient | None = None
        self._facts: _ModelFacts | None = None
        self._facts_lock = asyncio.Lock()
        self._created = int(time.time())

    @property
    def dialects(self) -> frozenset[str]:
        """All three."""
        return frozenset({RESPONSES, CHAT, MESSAGES})

    @property
    def token_dialects(self) -> frozenset[str]:
        """All three: every answer is made here, from exact tokens."""
        return self.dialects

    async def start(self) -> None:
        """Open the client; the model itself is asked for in :meth:`ready`."""
        if self._client is None:
            self._client = LlamaCppClient(
                self._base_url, max_connections=self._max_connections, request_timeout_s=self._request_timeout_s
            )

    async def ready(self, timeout_s: float, on_wait: Callable[[str], None] | None = None) -> None:  # noqa: ARG002
        """Return once the server answers and its model has Gemma's markers.

        Raises:
            EngineUnavailableError: The server does not answer within ``timeout_s``.
            EngineError: The model lacks a marker.
        """
        await self._http.wait_healthy(timeout_s)
        await self._model_facts()

    async def answer(self, request: EngineRequest) -> EngineAnswer:
        """Generate; a stream is returned as soon as llama.cpp accepts it, anything else when it is whole.

        Raises:
            UnsupportedRequestError: The request is malformed (422), asks for what this model cannot do, or does not
                fit into its context (400).
            EngineError: The server failed or cannot be reached.
        """
        job = await self._job(request)
        if request.stream:
            response = await self._http.open_stream(job.body)
            stream = self._stream(request, job, response)

            async def close() -> None:
                await stream.aclose()
                await response.aclose()  # a stream that nobody began has not closed it

            return EngineAnswer(200, list(SSE_HEADERS), stream, close, tokens=job.reader.tokens)
        last = await self._http.complete(job.body)
        job.reader.feed(last)
        _, generation = job.reader.close(last)
        self._report(request, generation)
        answer = exact_json.dumps(job.writer.answer(generation))
        return EngineAnswer.of_bytes(200, list(JSON_HEADERS), answer, tokens=job.reader.tokens)

    async def models(self) -> EngineAnswer:
        """List the one model."""
        model = {"id": self._model_name, "object": "model", "created": self._created, "owned_by": "gym-ray"}
        listed = exact_json.dumps({"object": "list", "data": [model]})
        return EngineAnswer.of_bytes(200, list(JSON_HEADERS), listed)

    async def count_tokens(self, request: EngineRequest) -> EngineAnswer:
        """Count the tokens of the prompt that a Messages request becomes; nothing is generated.

        Raises:
            UnsupportedRequestError: As :meth:`answer`.
        """
        _, ids, _ = await self._prompt(request.dialect, {"max_tokens": 1, **request.body})
        return EngineAnswer.of_bytes(200, list(JSON_HEADERS), exact_json.dumps({"input_tokens": len(ids)}))

    async def aclose(self) -> None:
        """Close the client; idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @property
    def _http(self) -> LlamaCppClient:
        if self._client is None:
            raise EngineError("the engine is not started", 503)
        return self._client

    async def _model_facts(self) -> _ModelFacts:
        async with self._facts_lock:
            if self._facts is None:
                markers = {}
                for name in (_BOS, START, END, *_OTHER_ENDS):
                    ids = await self._http.tokenize([name], parse_special=True)
                    if len(ids) == 1:
                        markers[name] = ids[0]
                    elif name not in _OTHER_ENDS:
                        raise EngineError(f"the embedded model has no token {name}; use a model of the Gemma family")
                self._facts = _ModelFacts(await self._http.context_tokens(), markers)
            return self._facts

    async def _prompt(
        self, dialect: str, body: Mapping[str, Any]
    ) -> tuple[PromptRequest, tuple[int, ...], list[Piece]]:
        prompt = read_request(dialect, body)
        markers = (await self._model_facts()).markers
        pieces = render(prompt, self._turn_end)
        ids = await self._http.tokenize(
            [markers[_BOS], *(markers[text] if marker else text for marker, text in pieces)]
        )
        return prompt, ids, pieces

    async def _continued(
        self, parent: ParentTokens | None, pieces: list[Piece], ids: tuple[int, ...], markers: Mapping[str, int]
    ) -> SentPrompt:
        """Return the prompt to send: the parent's exact tokens and what follows them, where that is the same text."""
        if parent is not None:
            try:
                continued = await continue_parent(
                    parent.token_ids.tolist(), pieces, ids, markers, self._http.detokenize
                )
            except EngineError as error:  # ids of another model have no text here
                _log.warning("call %s cannot be continued by its tokens: %s", parent.model_call_id, error)
                continued = None
            if continued is not None:
                return SentPrompt(tuple(continued), markers[END], continues=True)
        return SentPrompt(ids, markers[END])

    async def _job(self, request: EngineRequest) -> _Job:
        prompt, rendered, pieces = await self._prompt(request.dialect, request.body)
        grammar = build_grammar(prompt, self._turn_end)
        facts = await self._model_facts()
        parent = None if request.tokens is None else request.tokens.parent
        sent = await self._continued(parent, pieces, rendered, facts.markers)
        ids = sent.ids
        room = facts.context_tokens - len(ids)
        if room < 1:
            raise UnsupportedRequestError(
                f"the prompt has {len(ids)} tokens; this model's context length is {facts.context_tokens} tokens, "
                "prompt and answer together; shorten the input",
                400,
            )
        body = {**_sampling(prompt.sampling), **self._fixed(facts, grammar), "prompt": list(ids)}
        body["n_predict"] = min(prompt.sampling.max_tokens or self._default_max_tokens, room)
        body["stream"] = request.stream
        calls = bool(prompt.tools) and prompt.tool_choice.mode != "none"
        return _Job(
            body=body,
            reader=CompletionReader(sent, calls=calls, constrained=grammar is not None),
            writer=answer_writer(request.dialect, request.body, self._model_name),
            prompt_tokens=len(ids),
        )

    def _fixed(self, facts: _ModelFacts, grammar: str | None) -> dict[str, Any]:
        body: dict[str, Any] = {"n_probs": 1, "return_tokens": True, "cache_prompt": True}
        if grammar is not None:
            body["grammar"] = grammar
        if self._turn_end == "line":
            # A base model has no preference among the end tokens that its grammar leaves; the template's is the one.
            body["logit_bias"] = [[facts.markers[name], False] for name in _OTHER_ENDS if name in facts.markers]
        return body

    async def _stream(self, request: EngineRequest, job: _Job, response: httpx.Response) -> AsyncGenerator[bytes]:
        writer, reader = job.writer, job.reader
        try:
            yield writer.begin(job.prompt_tokens)
            last: dict[str, Any] = {}
            async with aclosing(self._http.events(response)) as answers:
                async for last in answers:
                    frames = b"".join(writer.event(event) for event in reader.feed(last))
                    if frames:
                        yield frames
            events, generation = reader.close(last)
            self._report(request, generation)
            yield b"".join(writer.event(event) for event in events) + writer.end(generation)
        except EngineError as error:
            # Headers are gone: the failure can only be told in the stream, as the dialect's own error event.
            yield writer.fail(error.message, error.status)
        finally:
            await response.aclose()

    def _report(self, request: EngineRequest, generation: Generation) -> None:
        if self._on_generation is not None:
            self._on_generation(request, generation)


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """Return llama.cpp's settings: the plain distribution unless the client asks for something else."""
    return {
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "top_k": 0 if sampling.top_k is None else sampling.top_k,
        "min_p": 0.0,
        "seed": -1 if sampling.seed is None else sampling.seed % _SEEDS,
        "presence_penalty": sampling.presence_penalty or 0.0,
        "frequency_penalty": sampling.frequency_penalty or 0.0,
        "stop": list(sampling.stop),
    }
