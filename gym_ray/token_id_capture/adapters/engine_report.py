"""Checks what an engine reports about the tokens of one call, before they may be trained on.

Every count is compared and nothing is filled in. The checks run in a fixed order, and the reason names the first thing
that is wrong: the number of choices, missing ids, the counts of the usage, the log probabilities, then the values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gym_ray.errors import NonFiniteLogProbError
from gym_ray.token_id_capture.adapters.log_prob_column import LogProbColumn
from gym_ray.token_id_capture.adapters.request_facts import RequestFacts
from gym_ray.token_id_capture.adapters.routed_experts import fitting_experts
from gym_ray.token_id_capture.exact_tokens import ExactTokens, TokenOutcome, Untrainable
from gym_ray.token_id_capture.extras import CallExtras, WeightSpan
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
from gym_ray.token_id_capture.token_arrays import TokenArray, TokenIds, pack_log_probs, pack_token_ids

__all__ = ["EngineReport", "counted", "token_outcome"]

_log = logging.getLogger(__name__)

_ENDED: Final = ("stop", "tool_calls", "function_call")


@dataclass(slots=True)
class EngineReport:
    """What an engine reports about one call, unchecked.

    Attributes:
        choices: How many choices the answer has.
        prompt: Ids of the prompt, None if the answer has none.
        generation: Sampled ids, None if the answer has none.
        log_probs: Their log probabilities.
        prompt_count: Prompt tokens by its usage, None if the answer has none.
        generated_count: Sampled tokens by its usage, None if the answer has none.
        finish: Why the generation ended, in the dialect's words.
        stop: What stopped it: a text, a token id, or None.
        experts: Its records of expert routing, normally one.
        spans: Its spans of weight versions.
        uneven: Which chunk of a stream does not have one log probability for each id; "" if none.
        conflict: What two places of one answer disagree about; "" if nothing.
        malformed: What cannot be read; "" if nothing.
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
        """Take the counts of a ``usage`` member; a count that is missing or malformed leaves the known one as it is."""
        if isinstance(usage, Mapping):
            prompt, generated = counted(usage.get("prompt_tokens")), counted(usage.get("completion_tokens"))
            self.prompt_count = self.prompt_count if prompt is None else prompt
            self.generated_count = self.generated_count if generated is None else generated


def counted(value: object) -> int | None:
    """Return a value that is a count, else None."""
    return value if type(value) is int and value >= 0 else None


def token_outcome(report: EngineReport, request: RequestFacts) -> TokenOutcome:
    """Return the exact tokens of a call, or the first reason why they cannot be used.

    Args:
        report: What the engine reports.
        request: What the client asked for.
    """
    for check in _CHECKS:
        problem = check(report)
        if problem is not None:
            return problem
    try:
        prompt, generation = _packed(report.prompt), _packed(report.generation)
    except ValueError as error:
        return Untrainable(MALFORMED_TOKENS, str(error))
    try:
        log_probs = pack_log_probs(report.log_probs.values)
    except NonFiniteLogProbError as error:
        return Untrainable(NON_FINITE_LOG_PROB, str(error))
    problem = _other_tokens(report.log_probs, generation) or _past_stop(report.stop, generation)
    if problem is not None:
        return problem
    experts, why_not = fitting_experts(report.experts, prompt.size + generation.size, request.experts_start)
    if why_not:
        _log.warning("the routing of experts is left out of a call that is kept: %s", why_not)
    return ExactTokens(
        prompt,
        generation,
        log_probs,
        routed_experts=experts,
        weight_spans=_weight_spans(report.spans, generation.size),
        constrained=request.constrained,
        ended_by=_ended_by(report.finish, report.stop, generation, request),
    )


def _size(ids: TokenIds | None) -> int:
    return 0 if ids is None else len(ids)


def _packed(ids: TokenIds | None) -> TokenArray:
    return pack_token_ids(() if ids is None else ids)


def _readable(report: EngineReport) -> Untrainable | None:
    if not report.choices:
        return Untrainable(ENGINE_REPORTS_NO_TOKENS, "the answer has no choice")
    if report.choices > 1:
        return Untrainable(SEVERAL_CHOICES, f"the answer has {report.choices} choices; one call is one sequence")
    if report.malformed:
        return Untrainable(MALFORMED_TOKENS, report.malformed)
    if report.conflict:
        return Untrainable(SEVERAL_CARRIERS, report.conflict)
    return None


def _ids(report: EngineReport) -> Untrainable | None:
    if report.generation is None and report.prompt is None:
        return Untrainable(ENGINE_REPORTS_NO_TOKENS, "the answer holds neither prompt ids nor generated ids")
    if report.generation is None and report.generated_count != 0:
        by_usage = "?" if report.generated_count is None else report.generated_count
        return Untrainable(IDS_MISSING, f"0 of {by_usage} generated tokens have an id")
    if report.prompt is None:
        return Untrainable(PROMPT_IDS_MISSING, "the answer holds generated ids and no prompt ids")
    return None


def _usage(report: EngineReport) -> Untrainable | None:
    if report.prompt_count is None or report.generated_count is None:
        return Untrainable(USAGE_MISSING, "no usage came, so nothing proves that every token did")
    ids, prompt = _size(report.generation), _size(report.prompt)
    if ids < report.generated_count:
        return Untrainable(IDS_MISSING, f"{ids} of {report.generated_count} generated tokens have an id")
    if ids > report.generated_count:
        return Untrainable(USAGE_MISMATCH, f"{ids} generated ids, {report.generated_count} tokens by the usage")
    if prompt != report.prompt_count:
        return Untrainable(USAGE_MISMATCH, f"{prompt} prompt ids, {report.prompt_count} tokens by the usage")
    return None


def _log_probs(report: EngineReport) -> Untrainable | None:
    ids, log_probs = _size(report.generation), len(report.log_probs)
    if log_probs < ids:
        return Untrainable(LOG_PROB_MISSING, f"{log_probs} of {ids} generated tokens have a log prob")
    if log_probs > ids:
        how = report.uneven or "trailing: more log probs than ids"
        return Untrainable(LENGTH_MISMATCH, f"{how}; {log_probs} log probs for {ids} ids")
    if report.log_probs.absent_at is not None:
        return Untrainable(LOG_PROB_MISSING, f"the engine has none for generated token {report.log_probs.absent_at}")
    if report.uneven:
        return Untrainable(LENGTH_MISMATCH, report.uneven)
    return None


_CHECKS: Final[tuple[Callable[[EngineReport], Untrainable | None], ...]] = (_readable, _ids, _usage, _log_probs)


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


def _ended_by(finish: object, stop: object, generation: TokenArray, request: RequestFacts) -> str:
    """Return how a generation ended; "" where the engine's words are ambiguous.

    For an answer with tool calls the finish reason is the tool calls, even if it was cut behind the last of them.
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
        return "stop_sequence" if stop in request.stop_token_ids else "eos"
    return "eos" if finish == "stop" and stop is None else ""


def _weight_spans(spans: object, generated: int) -> tuple[WeightSpan, ...]:
    read = CallExtras.of({"weight_spans": spans}).weight_spans
    edges = [edge for span in read for edge in (span.start, span.end)]
    return read if edges == sorted(edges) and (not edges or edges[-1] <= generated) else ()
