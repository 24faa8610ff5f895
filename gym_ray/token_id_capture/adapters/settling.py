"""From what an engine told of one call to what may be trained on: every count is checked, nothing is filled in.

The checks stand in one order, so that the reason names the first thing that is wrong: how many choices, whose ids are
missing, what the usage says, then the log probabilities, then the values themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gym_ray.errors import NonFiniteLogProbError
from gym_ray.token_id_capture.adapters.asked import Asked
from gym_ray.token_id_capture.adapters.log_prob_column import LogProbColumn
from gym_ray.token_id_capture.adapters.routed_experts import fitting_experts
from gym_ray.token_id_capture.exact_tokens import ExactTokens, TokenOutcome, Untrainable
from gym_ray.token_id_capture.extras import CallExtras, WeightSpan
from gym_ray.token_id_capture.packed import TokenArray, pack_log_probs, pack_token_ids
from gym_ray.token_id_capture.reasons import (
    ENGINE_REPORTS_NO_TOKENS,
    IDS_MISSING,
    LENGTH_MISMATCH,
    LOG_PROB_MISSING,
    MALFORMED_TOKENS,
    NON_FINITE_LOG_PROB,
    PROMPT_IDS_MISSING,
    SEVERAL_CARRIERS,
    SEVERAL_CHOICES,
    USAGE_MISMATCH,
    USAGE_MISSING,
)
from gym_ray.token_id_capture.token_arrays import TokenIds

__all__ = ["Told", "counted", "settle"]

_log = logging.getLogger(__name__)

_ENDED: Final = ("stop", "tool_calls", "function_call")


@dataclass(slots=True)
class Told:
    """What an engine told of one call, as it stood in the answer.

    Attributes:
        choices: How many choices the answer has.
        prompt: Ids of the prompt, None when it told none.
        generation: Sampled ids, None when it told none.
        log_probs: Their log probabilities.
        prompt_count: Prompt tokens by its usage, None when it told none.
        generated_count: Sampled tokens by its usage, None when it told none.
        finish: Why the generation ended, in the dialect's words.
        stop: What stopped it: a text, a token id, or None.
        experts: Its records of expert routing, one as a rule.
        spans: Its spans of weight versions.
        uneven: Where ids and log probabilities came apart within a stream, "" when they did not.
        conflict: What two carriers in one answer disagree about, "" when nothing.
        malformed: What cannot be read, "" when nothing.
    """

    choices: int = 1
    prompt: TokenIds | None = None
    generation: TokenIds | None = None
    log_probs: LogProbColumn = field(default_factory=LogProbColumn)
    prompt_count: int | None = None
    generated_count: int | None = None
    finish: object = None
    stop: object = None
    experts: list[Any] = field(default_factory=list)
    spans: object = None
    uneven: str = ""
    conflict: str = ""
    malformed: str = ""

    def take_usage(self, usage: object) -> None:
        """Take the counts of a ``usage`` member; anything that is no count leaves what is known as it is."""
        if isinstance(usage, Mapping):
            prompt, generated = counted(usage.get("prompt_tokens")), counted(usage.get("completion_tokens"))
            self.prompt_count = self.prompt_count if prompt is None else prompt
            self.generated_count = self.generated_count if generated is None else generated


def counted(value: object) -> int | None:
    """Return a value that is a count, else None."""
    return value if type(value) is int and value >= 0 else None


def settle(told: Told, asked: Asked) -> TokenOutcome:
    """Return the exact tokens of a call, or the first reason why they cannot be used.

    Args:
        told: What the engine told.
        asked: What the client asked for.
    """
    for check in _CHECKS:
        problem = check(told)
        if problem is not None:
            return problem
    try:
        prompt, generation = _packed(told.prompt), _packed(told.generation)
    except ValueError as error:
        return Untrainable(MALFORMED_TOKENS, str(error))
    try:
        log_probs = pack_log_probs(told.log_probs.values)
    except NonFiniteLogProbError as error:
        return Untrainable(NON_FINITE_LOG_PROB, str(error))
    problem = _other_tokens(told.log_probs, generation) or _past_stop(told.stop, generation)
    if problem is not None:
        return problem
    experts, why_not = fitting_experts(told.experts, prompt.size + generation.size, asked.experts_start)
    if why_not:
        _log.warning("the routing of experts is left out of a call that is kept: %s", why_not)
    return ExactTokens(
        prompt,
        generation,
        log_probs,
        routed_experts=experts,
        weight_spans=_weight_spans(told.spans, generation.size),
        constrained=asked.constrained,
        ended_by=_ended_by(told.finish, told.stop, generation, asked),
    )


def _size(ids: TokenIds | None) -> int:
    return 0 if ids is None else len(ids)


def _packed(ids: TokenIds | None) -> TokenArray:
    return pack_token_ids(() if ids is None else ids)


def _readable(told: Told) -> Untrainable | None:
    if not told.choices:
        return Untrainable(ENGINE_REPORTS_NO_TOKENS, "the answer has no choice")
    if told.choices > 1:
        return Untrainable(SEVERAL_CHOICES, f"the answer has {told.choices} choices; one call is one sequence")
    if told.malformed:
        return Untrainable(MALFORMED_TOKENS, told.malformed)
    if told.conflict:
        return Untrainable(SEVERAL_CARRIERS, told.conflict)
    return None


def _ids(told: Told) -> Untrainable | None:
    if told.generation is None and told.prompt is None:
        return Untrainable(ENGINE_REPORTS_NO_TOKENS, "the answer holds neither prompt ids nor generated ids")
    if told.generation is None and told.generated_count != 0:
        by_usage = "?" if told.generated_count is None else told.generated_count
        return Untrainable(IDS_MISSING, f"0 of {by_usage} generated tokens have an id")
    if told.prompt is None:
        return Untrainable(PROMPT_IDS_MISSING, "the answer holds generated ids and no prompt ids")
    return None


def _usage(told: Told) -> Untrainable | None:
    if told.prompt_count is None or told.generated_count is None:
        return Untrainable(USAGE_MISSING, "no usage came, so nothing proves that every token did")
    ids, prompt = _size(told.generation), _size(told.prompt)
    if ids < told.generated_count:
        return Untrainable(IDS_MISSING, f"{ids} of {told.generated_count} generated tokens have an id")
    if ids > told.generated_count:
        return Untrainable(USAGE_MISMATCH, f"{ids} generated ids, {told.generated_count} tokens by the usage")
    if prompt != told.prompt_count:
        return Untrainable(USAGE_MISMATCH, f"{prompt} prompt ids, {told.prompt_count} tokens by the usage")
    return None


def _log_probs(told: Told) -> Untrainable | None:
    ids, log_probs = _size(told.generation), len(told.log_probs)
    if log_probs < ids:
        return Untrainable(LOG_PROB_MISSING, f"{log_probs} of {ids} generated tokens have a log prob")
    if log_probs > ids:
        how = told.uneven or "trailing: more log probs than ids"
        return Untrainable(LENGTH_MISMATCH, f"{how}; {log_probs} log probs for {ids} ids")
    if told.log_probs.absent_at is not None:
        return Untrainable(LOG_PROB_MISSING, f"the engine has none for generated token {told.log_probs.absent_at}")
    if told.uneven:
        return Untrainable(LENGTH_MISMATCH, told.uneven)
    return None


_CHECKS: Final[tuple[Callable[[Told], Untrainable | None], ...]] = (_readable, _ids, _usage, _log_probs)


def _other_tokens(log_probs: LogProbColumn, generation: TokenArray) -> Untrainable | None:
    """Find log probabilities that name other tokens than the ids beside them."""
    if log_probs.named is None:
        return None
    differing = (pack_token_ids(log_probs.named) != generation).nonzero()[0]
    if not differing.size:
        return None
    at = int(differing[0])
    named = f"log prob {at} is of token {log_probs.named[at]}, the id there is {generation[at]}"
    return Untrainable(LENGTH_MISMATCH, f"shifted: {named}")


def _past_stop(stop: object, generation: TokenArray) -> Untrainable | None:
    """Find ids behind the token that ended the generation, which a speculating engine may leave there."""
    if type(stop) is not int or not generation.size or generation[-1] == stop:
        return None
    found = (generation == stop).nonzero()[0]
    if not found.size:
        return None
    return Untrainable(
        LENGTH_MISMATCH, f"past_stop: {generation.size} ids, the stop token {stop} is the one at index {found[0]}"
    )


def _ended_by(finish: object, stop: object, generation: TokenArray, asked: Asked) -> str:
    """Return how a generation ended; "" where the engine's words allow two readings.

    An answer with tool calls says so instead of how it ended, and may have been cut behind the last call.
    """
    if finish == "length":
        return "length"
    if finish not in _ENDED or not generation.size:
        return ""
    if isinstance(stop, str):
        return "stop_sequence"
    if type(stop) is int:
        if generation[-1] != stop:
            return ""
        return "stop_sequence" if stop in asked.stop_token_ids else "eos"
    return "eos" if finish == "stop" and stop is None else ""


def _weight_spans(spans: object, generated: int) -> tuple[WeightSpan, ...]:
    read = CallExtras.of({"weight_spans": spans}).weight_spans
    edges = [edge for span in read for edge in (span.start, span.end)]
    return read if edges == sorted(edges) and (not edges or edges[-1] <= generated) else ()
