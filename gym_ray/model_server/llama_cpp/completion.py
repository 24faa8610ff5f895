"""Reads the answers of ``/completion``, whole or streamed, into one neutral generation and its exact tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gym_ray.dialects.neutral import Finish, Generation, GenerationEvent, GenerationUsage
from gym_ray.errors import EngineError
from gym_ray.model_server.llama_cpp.parsing import TurnParser
from gym_ray.token_id_capture.exact_tokens import ExactTokens, TokenOutcome, Untrainable
from gym_ray.token_id_capture.reasons import (
    IDS_MISSING,
    LOG_PROB_MISSING,
    MALFORMED_TOKENS,
    NON_FINITE_LOG_PROB,
    PREFIX_NOT_SUPPLIED,
    USAGE_MISMATCH,
)
from gym_ray.token_id_capture.token_arrays import pack_log_probs, pack_token_ids

__all__ = ["CompletionReader", "SentPrompt"]

_FINISH: Final = {"limit": Finish.LENGTH, "word": Finish.STOP_SEQUENCE, "eos": Finish.STOP, "none": Finish.STOP}


_ENDED_BY: Final = {"limit": "length", "word": "stop_sequence", "eos": "eos"}


@dataclass(frozen=True, slots=True)
class SentPrompt:
    """What was sent to be continued.

    Attributes:
        ids: The exact tokens.
        end_of_turn: Id of the marker that ends the model's turn.
        continues: The ids begin with those of the call's parent, on purpose.
    """

    ids: tuple[int, ...]
    end_of_turn: int = -1
    continues: bool = False


class CompletionReader:
    """Collects one completion.

    Every id and log probability is kept as reported and counted against the engine's own counter in the end: a stream
    leaves out the first tokens of a character that is spread over several, and a stop text can cost a log probability.

    Args:
        prompt: What was sent.
        calls: Whether the turn may be a tool call.
        constrained: Whether a grammar was in force.
    """

    def __init__(self, prompt: SentPrompt, *, calls: bool, constrained: bool) -> None:
        self._prompt = prompt
        self._parser = TurnParser(calls=calls)
        self._constrained = constrained
        self._tokens: list[int] = []
        self._log_probs: list[tuple[int, float | None]] = []
        self._usage: GenerationUsage | None = None
        self._ended_by, self._truncated = "", False

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
        self._usage, self._truncated = usage, last.get("truncated") is True
        self._ended_by = _ENDED_BY.get(str(last.get("stop_type")), "")
        complete = len(self._tokens) == usage.completion_tokens
        values = [value for _, value in self._log_probs if value is not None]
        aligned = complete and self._is_aligned() and len(values) == len(self._tokens)
        finish = _FINISH.get(str(last.get("stop_type")), Finish.STOP)
        return events, Generation(
            text=self._parser.text,
            tool_calls=self._parser.tool_calls,
            finish=Finish.TOOL_CALLS if self._parser.tool_calls else finish,
            usage=usage,
            prompt_token_ids=self._prompt.ids,
            token_ids=tuple(self._tokens) if complete else None,
            log_probs=tuple(values) if aligned else None,
            constrained=self._constrained,
            stop_sequence=str(last["stopping_word"]) if finish is Finish.STOP_SEQUENCE else None,
        )

    def tokens(self) -> TokenOutcome:
        """Return what the engine consumed and sampled, or why its answers do not tell; meant for a closed completion.

        The engine's own counters are the proof: a prompt of which it evaluated another number of tokens than was sent
        is not the prompt that it saw.
        """
        prompt, usage = self._prompt, self._usage
        problem = self._problem()
        if problem is not None or usage is None:
            reason, detail = problem or (IDS_MISSING, "the completion did not end")
            return Untrainable(reason, detail, prefix_requested=prompt.continues)
        # Only the template's own marker ends a turn in the sense of a continuation.
        open_end = self._ended_by == "eos" and self._tokens[-1:] != [prompt.end_of_turn]
        try:
            return ExactTokens(
                prompt_token_ids=pack_token_ids(prompt.ids),
                generation_token_ids=pack_token_ids(self._tokens),
                generation_log_probs=pack_log_probs(
                    [float(value) for _, value in self._log_probs if value is not None]
                ),
                constrained=self._constrained,
                ended_by="" if open_end else self._ended_by,
                prefix_requested=prompt.continues,
                prefix_supplied=prompt.continues,
                token_in="completion" if prompt.continues else "",
            )
        except (TypeError, ValueError) as error:
            return Untrainable(MALFORMED_TOKENS, str(error), prefix_requested=prompt.continues)

    def _problem(self) -> tuple[str, str] | None:
        """Return the reason for which the tokens are not exact, and its numbers."""
        usage, sent, tokens = self._usage, len(self._prompt.ids), self._tokens
        if usage is None:
            return IDS_MISSING, "the completion did not end"
        if usage.prompt_tokens != sent or self._truncated:
            reason = PREFIX_NOT_SUPPLIED if self._prompt.continues else USAGE_MISMATCH
            cut = ", and it says that it cut the prompt" if self._truncated else ""
            return reason, f"{sent} prompt tokens were sent, the engine evaluated {usage.prompt_tokens}{cut}"
        if len(tokens) != usage.completion_tokens:
            return IDS_MISSING, f"the engine predicted {usage.completion_tokens} tokens and reported {len(tokens)}"
        if not self._is_aligned():
            return LOG_PROB_MISSING, f"{len(tokens)} tokens have {len(self._log_probs)} log probabilities"
        if any(value is None for _, value in self._log_probs):
            return NON_FINITE_LOG_PROB, "a log probability is null, which stands for one that is not finite"
        return None

    def _is_aligned(self) -> bool:
        return [token for token, _ in self._log_probs] == self._tokens
