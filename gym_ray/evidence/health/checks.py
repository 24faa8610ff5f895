"""The checks of one record (D107): each looks at a view and gives its findings, or None when it could not look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from gym_ray.evidence.health.content import response_says_anything, says_anything
from gym_ray.evidence.health.endings import calls_by_model, ended_on_failure, is_terminal
from gym_ray.evidence.health.view import CallFacts, RolloutView
from gym_ray.evidence.observations.gaps import REFERENCE_AMBIGUOUS, REFERENCE_CONFLICT, REFERENCE_UNMATCHED

__all__ = ["RECORD_CHECKS", "Check", "Found", "usage_totals"]


class Found(NamedTuple):
    """One finding of a check.

    Attributes:
        locator: Which turn or call; None for the rollout as a whole.
        detail: What is wrong with it.
    """

    locator: dict[str, Any] | None
    detail: dict[str, Any]


Check = Callable[[RolloutView], Sequence[Found] | None]
_NONE: Final[Sequence[Found]] = ()
_CUT_SHORT: Final = frozenset({"length", "max_output_tokens", "max_tokens"})
_REFERENCE_GAPS: Final = MappingProxyType(
    {
        REFERENCE_UNMATCHED: "missing_captured_call",
        REFERENCE_AMBIGUOUS: "duplicated_captured_call",
        REFERENCE_CONFLICT: "conflicting_call_ownership",
    }
)
_PLACES_OF_REFERENCES: Final = ("before_model_call:", "after_model_call:", "model_calls:")
_COUNTED: Final = ("prompt_tokens", "completion_tokens")


def missing_agent_turns(view: RolloutView) -> Sequence[Found] | None:
    """Find a rollout in which no turn has content, a tool call or a reference."""
    if not view.turns_observed or not view.payloads_inline:
        return None
    if any(turn.get("model_calls") or says_anything(turn.get("answer")) for turn in view.turns):
        return _NONE
    reason = "no turn has content, a tool call or a model call" if view.turns else "there are no turns"
    return [Found(None, {"reason": reason})]


def ended_on_failed_model_call(view: RolloutView) -> Sequence[Found] | None:
    """Find the models whose last call failed."""
    if not view.calls_observed or not view.calls:
        return None
    found = []
    for last, calls in ended_on_failure(view):
        detail = {
            "model_ref": last.model_name,
            "status": last.status,
            "error_category": last.error_category,
            "observed_calls": len(calls),
            "successful_calls": sum(not call.failed for call in calls),
        }
        found.append(Found(_locator(last), detail))
    return found


def turn_hollow(view: RolloutView) -> Sequence[Found] | None:
    """Find turns without content, reasoning and tool call."""
    if not view.turns_observed or not view.payloads_inline:
        return None
    hollow = [turn for turn in view.turns if _is_hollow(turn)]
    if not hollow:
        return _NONE
    several = len({turn["invocation_id"] for turn in view.turns}) > 1
    reason = "the turn has no content, no reasoning and no tool call"
    return [
        Found(
            {"turn": turn["turn_no"], **({"invocation_id": turn["invocation_id"]} if several else {})},
            {"reason": reason},
        )
        for turn in hollow
    ]


def _is_hollow(turn: Mapping[str, Any]) -> bool:
    return not (
        says_anything(turn.get("answer"), reasoning=True)
        or says_anything(turn.get("reasoning_content"), reasoning=True)
    )


def zero_completion_tokens(view: RolloutView) -> Sequence[Found] | None:
    """Find owned calls that generated nothing."""
    if not view.calls_observed or not view.owned:
        return None
    calls = [view.calls[place] for place in view.owned]
    return [Found(_locator(call), {"completion_tokens": 0}) for call in calls if call.completion_tokens == 0]


def missing_token_counts(view: RolloutView) -> Sequence[Found] | None:
    """Find owned calls whose tokens nobody counted."""
    if not view.calls_observed or not view.owned:
        return None
    found = []
    for place in view.owned:
        call = view.calls[place]
        if call.prompt_tokens is None or call.completion_tokens is None:
            missing = [count for count in _COUNTED if getattr(call, count) is None]
            found.append(Found(_locator(call), {"missing": missing}))
    return found


def capture_mismatch(view: RolloutView) -> Sequence[Found] | None:
    """Find references that name no call, several, or one that belongs to another invocation."""
    if not view.calls_observed:
        return None
    gaps = [gap for gap in view.gaps if gap["code"] in _REFERENCE_GAPS]
    if not view.references and not gaps:
        return None
    found: dict[tuple[str | None, str], Found] = {}
    for ref, places in view.references:
        if len(places) != 1:
            call_id = ref.get("model_call_id") or ref.get("response_id")
            kind = "duplicated_captured_call" if places else "missing_captured_call"
            found.setdefault((call_id, kind), Found({"call_id": call_id}, {"kind": kind}))
    for gap in gaps:
        code, kind = gap["code"], _REFERENCE_GAPS[gap["code"]]
        call_id = _call_of_gap(gap.get("detail"))
        detail = {"kind": kind, "observation_gap": code, "invocation_id": gap.get("invocation_id")}
        found.setdefault((call_id, kind), Found({"call_id": call_id}, detail))
    return list(found.values())


def _call_of_gap(detail: str | None) -> str | None:
    for prefix in _PLACES_OF_REFERENCES:
        if detail is not None and detail.startswith(prefix):
            return detail[len(prefix) :]
    return detail


def model_call_failed(view: RolloutView) -> Sequence[Found] | None:
    """Find owned calls that failed."""
    if not view.calls_observed or not view.owned:
        return None
    failed = [call for call in map(view.calls.__getitem__, view.owned) if call.failed]
    if not failed:
        return _NONE
    groups = calls_by_model(view)
    found = []
    for call in failed:
        terminal = is_terminal(call, groups[call.model_ref])
        detail = {"status": call.status, "error_category": call.error_category, "terminal": terminal}
        found.append(Found(_locator(call), detail))
    return found


def usage_totals(record: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the input and output tokens that the final response reports, None for each that it does not."""
    response = record.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    if not isinstance(usage, dict):
        return None, None
    return _whole(usage.get("input_tokens")), _whole(usage.get("output_tokens"))


def token_count_mismatch(view: RolloutView) -> Sequence[Found] | None:
    """Find a final response whose totals are not those of its calls (D107, D111)."""
    prompt, completion = usage_totals(view.record)
    if prompt is None or completion is None or not view.tokens_bound:
        return None
    calls = [view.calls[place] for place in view.token_places]
    prompts = [call.prompt_tokens for call in calls if call.prompt_tokens is not None]
    completions = [call.completion_tokens for call in calls if call.completion_tokens is not None]
    if len(prompts) < len(calls) or len(completions) < len(calls):
        return None
    captured = (sum(prompts), sum(completions))
    if captured == (prompt, completion):
        return _NONE
    totals = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "capture_prompt_tokens": captured[0],
        "capture_completion_tokens": captured[1],
    }
    return [Found(None, totals)]


def runaway_generation(view: RolloutView) -> Sequence[Found] | None:
    """Find owned calls that ran into the token limit before they said anything."""
    if not view.calls_observed or not view.owned or not view.payloads_inline:
        return None
    found, unseen = [], False
    for place in view.owned:
        call = view.calls[place]
        if call.finish_reason not in _CUT_SHORT:
            continue
        says = response_says_anything(call.response)
        unseen = unseen or says is None
        if says is False:
            found.append(Found(_locator(call), {"finish_reason": call.finish_reason}))
    return None if unseen and not found else found


def _locator(call: CallFacts) -> dict[str, Any]:
    return {"call_id": call.name}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


RECORD_CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "rollout_missing_agent_turns": missing_agent_turns,
        "rollout_ended_on_failed_model_call": ended_on_failed_model_call,
        "agent_turn_hollow": turn_hollow,
        "model_call_zero_completion_tokens": zero_completion_tokens,
        "model_call_missing_token_counts": missing_token_counts,
        "trajectory_capture_mismatch": capture_mismatch,
        "model_call_failed": model_call_failed,
        "rollout_token_count_mismatch": token_count_mismatch,
        "model_call_runaway_generation": runaway_generation,
    }
)
"""The checks that look into a record, in the order of reports."""
