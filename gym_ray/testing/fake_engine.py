"""An engine that plays a script, in-process: for tests and for measuring what stands in front of an engine."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.errors import EngineError, EngineUnavailableError
from gym_ray.model_server.engine import EngineAnswer, EngineRequest
from gym_ray.testing.script import ScriptedAnswer, ScriptedCutError
from gym_ray.testing.scripted_dialects import json_answer, stream_answer

__all__ = ["FakeEngine"]

_KEPT_REQUESTS = 1000
_MODELS = ScriptedAnswer(
    [b'{"object":"list","data":[{"id":"fake-model","object":"model","created":0,"owned_by":"t"}]}']
)


class FakeEngine:
    """Implements ``Engine``.

    Without a script every request gets a well-formed answer that says ``text``, streamed when the client asks for it.

    Args:
        text: What the default answers say.
        script: Takes a request and returns its answer, or raises an ``EngineError``.
        dialects: Dialects the engine claims to speak.
        token_dialects: Dialects in which :attr:`ScriptedAnswer.tokens` are reported when a request asks for them.
        unready: Message of the ``EngineUnavailableError`` that :meth:`ready` raises; "" when it is ready.

    Attributes:
        requests: The last 1,000 requests, oldest first.
        open_answers: Answers that were given and not closed.
        closed_early: Answers that were closed before their end.
        started: ``start`` was called and ``aclose`` was not.
    """

    def __init__(
        self,
        text: str = "hello there",
        *,
        script: Callable[[EngineRequest], ScriptedAnswer] | None = None,
        dialects: Iterable[str] = (RESPONSES, CHAT, MESSAGES),
        token_dialects: Iterable[str] = (),
        unready: str = "",
    ) -> None:
        self._dialects = frozenset(dialects)
        self._token_dialects = frozenset(token_dialects)
        self._script = script
        self._whole = {dialect: json_answer(dialect, text) for dialect in (RESPONSES, CHAT, MESSAGES)}
        self._streams = {dialect: stream_answer(dialect, text) for dialect in (RESPONSES, CHAT, MESSAGES)}
        self.unready = unready
        self.requests: deque[EngineRequest] = deque(maxlen=_KEPT_REQUESTS)
        self.open_answers = 0
        self.closed_early = 0
        self.started = False

    @property
    def dialects(self) -> frozenset[str]:
        """Dialects the engine claims to speak."""
        return self._dialects

    @property
    def token_dialects(self) -> frozenset[str]:
        """Dialects in which the engine claims to report tokens."""
        return self._token_dialects

    async def start(self) -> None:
        """Note the start."""
        self.started = True

    async def ready(self, timeout_s: float, on_wait: Callable[[str], None] | None = None) -> None:  # noqa: ARG002
        """Return at once, or raise ``EngineUnavailableError`` when the engine was made unready."""
        del timeout_s  # a fake never has to wait
        if self.unready:
            raise EngineUnavailableError(self.unready)

    async def answer(self, request: EngineRequest) -> EngineAnswer:
        """Play the script, or the default answer."""
        self.requests.append(request)
        if self._script is not None:
            scripted = self._script(request)
        else:
            scripted = (self._streams if request.stream else self._whole)[request.dialect]
        await scripted.started()
        asked = request.tokens is not None and request.dialect in self._token_dialects
        return self._play(scripted, asked=asked)

    async def models(self) -> EngineAnswer:
        """List one model."""
        return self._play(_MODELS)

    async def count_tokens(self, request: EngineRequest) -> EngineAnswer:
        """Say seven."""
        self.requests.append(request)
        return self._play(ScriptedAnswer([b'{"input_tokens":7}']))

    async def aclose(self) -> None:
        """Note the end."""
        self.started = False

    def _play(self, scripted: ScriptedAnswer, *, asked: bool = False) -> EngineAnswer:
        playing = _Playing(self, scripted)
        answer = EngineAnswer(scripted.status, scripted.all_headers, playing.body, playing.aclose)
        if asked and (outcome := scripted.tokens) is not None:
            answer.tokens = lambda: outcome
        return answer


class _Playing:
    def __init__(self, engine: FakeEngine, scripted: ScriptedAnswer) -> None:
        self._engine = engine
        self._scripted = scripted
        self._ended = False
        self._closed = False
        self.body = self._chunks()
        engine.open_answers += 1

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in self._scripted.play():
                yield chunk
        except ScriptedCutError:
            self._ended = True
            raise EngineError("the engine died in the middle of its answer") from None
        self._ended = True

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self.body.aclose()
        self._engine.open_answers -= 1
        if not self._ended:
            self._engine.closed_early += 1
