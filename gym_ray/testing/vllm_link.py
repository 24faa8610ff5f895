"""An engine in front of a scripted vLLM server: for tests only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from pydantic import SecretStr

from gym_ray.dialects import CHAT
from gym_ray.model_server.engine import EngineAnswer, EngineRequest, TokenRequest
from gym_ray.model_server.engines import build_engine
from gym_ray.model_server.serving import AppServer
from gym_ray.model_server.vllm.engine import VllmEngine
from gym_ray.settings import ServerSettings, VllmModelOptions
from gym_ray.testing.fake_upstream import FakeUpstream, UpstreamRequest
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.token_id_capture.exact_tokens import ExactTokens, ParentTokens, TokenOutcome, Untrainable
from gym_ray.token_id_capture.token_arrays import join_tokens

__all__ = ["VllmLink", "exact_tokens", "linked_vllm", "parent_of", "untrainable"]


class VllmLink:
    """The engine, and what reaches its server.

    Attributes:
        engine: The engine, started.
        fake: The server.
    """

    def __init__(self, engine: VllmEngine, fake: FakeUpstream) -> None:
        self.engine, self.fake = engine, fake

    async def answer(
        self, body: Mapping[str, Any], parent: ParentTokens | None = None, **members: Any
    ) -> tuple[EngineAnswer, bytes]:
        """Ask for exact tokens in the Chat dialect; return the answer, its body read, and the body."""
        request = EngineRequest(CHAT, body, json.dumps(body).encode(), tokens=TokenRequest(parent))
        answer = await self.engine.answer(replace(request, **members))
        return answer, await answer.read()

    @property
    def sent(self) -> list[dict[str, Any]]:
        """Bodies of the requests that reached the server."""
        return [json.loads(request.body) for request in self.fake.requests]

    @property
    def paths(self) -> list[str]:
        """Their paths."""
        return [request.path for request in self.fake.requests]


@asynccontextmanager
async def linked_vllm(
    script: Callable[[UpstreamRequest], ScriptedAnswer] | None = None,
    *,
    fail_unproven_prefix: bool = False,
    **options: Any,
) -> AsyncIterator[VllmLink]:
    """Serve a script as a vLLM server for the block, with an engine that has these options of a ``vllm_model``."""
    fake = FakeUpstream(script)
    upstream = AppServer(fake)
    await upstream.start()
    given = {"base_url": f"{upstream.url}/v1", "api_key": SecretStr("sk-1"), "model": "served", **options}
    chosen = VllmModelOptions.model_validate(given)
    engine = build_engine(
        ServerSettings("policy_model", "responses_api_models", "vllm_model", chosen),
        local_engine_url=None,
        fail_unproven_prefix=fail_unproven_prefix,
    )
    if not isinstance(engine, VllmEngine):
        raise TypeError(f"a vllm_model made a {type(engine).__name__}")
    await engine.start()
    try:
        yield VllmLink(engine, fake)
    finally:
        await engine.aclose()
        await upstream.stop(grace_s=5)


def exact_tokens(answer: EngineAnswer) -> ExactTokens:
    """Return the tokens of an answer that has them.

    Raises:
        TypeError: It has none; the message has the outcome.
    """
    outcome = _outcome(answer)
    if not isinstance(outcome, ExactTokens):
        raise TypeError(str(outcome))
    return outcome


def untrainable(answer: EngineAnswer) -> Untrainable:
    """Return why the tokens of an answer cannot be used.

    Raises:
        TypeError: They can; the message has the outcome.
    """
    outcome = _outcome(answer)
    if not isinstance(outcome, Untrainable):
        raise TypeError(str(outcome))
    return outcome


def _outcome(answer: EngineAnswer) -> TokenOutcome | None:
    return None if answer.tokens is None else answer.tokens()


def parent_of(tokens: ExactTokens) -> ParentTokens:
    """Return a call's tokens as those of a parent."""
    generated = tokens.generation_token_ids
    return ParentTokens("c1", join_tokens([tokens.prompt_token_ids, generated]), tokens.ended_by, generated.size)
