"""Reads the answers of ``/completion``, whole or streamed, into one neutral generation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects.neutral import Finish, Generation, GenerationEvent, GenerationUsage
from gym_ray.errors import EngineError
from gym_ray.model_server.llama_cpp.parsing import TurnParser

__all__ = ["CompletionReader"]

_FINISH: Final = {"limit": Finish.LENGTH, "word": Finish.STOP_SEQUENCE, "eos": Finish.STOP, "none": Finish.STOP}


class CompletionReader:
    """Collects one completion.

    Every id and log probability is kept as reported and counted against the engine's own counter in the end: a stream
    leaves out the first tokens of a character that is spread over several, and a stop text can cost a log probability.

    Args:
        prompt_token_ids: The ids that were sent.
        calls: Whether the turn may be a tool call.
        constrained: Whether a grammar was in force.
    """

    def __init__(self, prompt_token_ids: tuple[int, ...], *, calls: bool, constrained: bool) -> None:
        self._prompt = prompt_token_ids
        self._parser = TurnParser(calls=calls)
        self._constrained = constrained
        self._tokens: list[int] = []
        self._log_probs: list[tuple[int, float]] = []

    def feed(self, answer: Mapping[str, Any]) -> list[GenerationEvent]:
        """Take a whole answer or one object of a stream and return what may be shown now."""
        self._tokens += answer.get("tokens") or ()
        self._log_probs += [(item["id"], item["logprob"]) for item in answer.get("completion_probabilities") or ()]
        return self._parser.feed(answer.get("content") or "")

    def close(self, last: Mapping[str, Any]) -> tuple[list[GenerationEvent], Generation]:
        """End the completion with its last object, which was fed before.

        Returns:
            What became certain with the end, and the whole generation.

        Raises:
            EngineError: The answer lacks the engine's counters.
        """
        events = self._parser.close()
        try:
            usage = GenerationUsage(
                int(last["tokens_evaluated"]), int(last["timings"]["cache_n"]), int(last["tokens_predicted"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"the embedded model's answer lacks a counter: {error!r}", 502) from error
        complete = len(self._tokens) == usage.completion_tokens
        aligned = complete and [token for token, _ in self._log_probs] == self._tokens
        finish = _FINISH.get(str(last.get("stop_type")), Finish.STOP)
        return events, Generation(
            text=self._parser.text,
            tool_calls=self._parser.tool_calls,
            finish=Finish.TOOL_CALLS if self._parser.tool_calls else finish,
            usage=usage,
            prompt_token_ids=self._prompt,
            token_ids=tuple(self._tokens) if complete else None,
            log_probs=tuple(value for _, value in self._log_probs) if aligned else None,
            constrained=self._constrained,
            stop_sequence=str(last["stopping_word"]) if finish is Finish.STOP_SEQUENCE else None,
        )
