"""Exact tokens from whole answers of vLLM, stock and patched, and of servers that answer alike.

Where they stand:

- stock Chat with ``return_token_ids``: ``prompt_token_ids`` at the top, ``token_ids`` in the choice;
- patched and older workers: ``prompt_token_ids``, ``generation_token_ids`` and ``generation_log_probs`` in the message,
  and ``routed_experts`` there or in the choice;
- ``return_tokens_as_token_ids``: ``token_id:<n>`` in place of each log prob's text;
- ``/inference/v1/generate``: as stock Chat, with the id beside each log prob and spans of weight versions;
- SGLang's own route: ``output_ids`` and ``meta_info.output_token_logprobs``.

Unknown members are ignored. Tokens that the usage does not prove complete are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.token_id_capture.adapters.engine_report import EngineReport, counted, token_outcome
from gym_ray.token_id_capture.adapters.request_facts import RequestFacts
from gym_ray.token_id_capture.adapters.vllm_capture import VLLMCaptureAdapter
from gym_ray.token_id_capture.exact_tokens import TokenOutcome

__all__ = [
    "EXPERTS_FIELD",
    "RequestFacts",
    "VLLMCaptureAdapter",
    "take_ending",
    "tokens_of_chat_answer",
    "tokens_of_generate_answer",
]

EXPERTS_FIELD: Final = "routed_experts"
"""Member with the routing of experts, in a choice, or in the message of one as patched workers put it there."""
_PLAIN_REQUEST: Final = RequestFacts()


def tokens_of_chat_answer(answer: Mapping[str, Any], request: RequestFacts = _PLAIN_REQUEST) -> TokenOutcome:
    """Return the exact tokens of a whole Chat answer, or why they cannot be used; never raises.

    Args:
        answer: The answer as the engine gave it.
        request: What its request says about it.
    """
    report = _report_of(answer)
    choice = _first_choice(answer)
    message = _object(choice.get("message"))
    report.prompt = _agreed(report, "prompt ids", message.get("prompt_token_ids"), answer.get("prompt_token_ids"))
    report.generation = _agreed(report, "generated ids", message.get("generation_token_ids"), choice.get("token_ids"))
    if not report.experts and message.get(EXPERTS_FIELD) is not None:
        report.experts.append(message[EXPERTS_FIELD])
    log_probs = message.get("generation_log_probs")
    if isinstance(log_probs, list):
        report.log_probs.take_values(log_probs)
    else:
        report.log_probs.take_items(_object(choice.get("logprobs")).get("content"))
    if report.generation is None and report.log_probs.named:
        report.generation = report.log_probs.named
    return token_outcome(report, request)


def tokens_of_generate_answer(answer: Mapping[str, Any], request: RequestFacts = _PLAIN_REQUEST) -> TokenOutcome:
    """Return the exact tokens of an answer of ``/inference/v1/generate`` or of SGLang's ``/generate``; never raises.

    Args:
        answer: The answer as the engine gave it.
        request: What its request says about it.
    """
    if isinstance(answer.get("meta_info"), Mapping):
        return _tokens_of_sglang_answer(answer, request)
    report = _report_of(answer)
    choice = _first_choice(answer)
    report.prompt = _listed(report, "prompt_token_ids", answer.get("prompt_token_ids"))
    report.generation = _listed(report, "token_ids", choice.get("token_ids"))
    report.log_probs.take_items(_object(choice.get("logprobs")).get("content"))
    return token_outcome(report, request)


def take_ending(report: EngineReport, choice: Mapping[str, Any]) -> None:
    """Take what a choice, or the last chunk of one, says about its end, its routing and its weights."""
    stop = choice.get("stop_reason")
    for name, value in (
        ("finish", choice.get("finish_reason")),
        ("stop", choice.get("matched_stop") if stop is None else stop),
        ("spans", choice.get("weight_versions")),
    ):
        if value is not None:
            setattr(report, name, value)
    if choice.get(EXPERTS_FIELD) is not None:
        report.experts.append(choice[EXPERTS_FIELD])


def _tokens_of_sglang_answer(answer: Mapping[str, Any], request: RequestFacts) -> TokenOutcome:
    report = EngineReport()
    meta = _object(answer.get("meta_info"))
    prompt = answer.get("prompt_token_ids")
    report.prompt = _listed(report, "prompt ids", answer.get("input_ids") if prompt is None else prompt)
    report.generation = _listed(report, "output_ids", answer.get("output_ids"))
    pairs = meta.get("output_token_logprobs")
    report.log_probs.take_pairs(pairs if isinstance(pairs, list) else [])
    if report.generation is None and report.log_probs.named:
        report.generation = report.log_probs.named
    report.prompt_count = counted(meta.get("prompt_tokens"))
    report.generated_count = counted(meta.get("completion_tokens"))
    finish = _object(meta.get("finish_reason"))
    report.finish, report.stop = finish.get("type"), finish.get("matched")
    report.experts += [] if meta.get("routed_experts") is None else [meta["routed_experts"]]
    version = meta.get("weight_version")
    if version is not None and report.generated_count is not None:
        report.spans = [{"version": version, "start": 0, "end": report.generated_count}]
    return token_outcome(report, request)


def _report_of(answer: Mapping[str, Any]) -> EngineReport:
    choices = answer.get("choices")
    report = EngineReport(choices=len(choices) if isinstance(choices, list) else 0)
    report.take_usage(answer.get("usage"))
    take_ending(report, _first_choice(answer))
    return report


def _first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    return _object(choices[0]) if isinstance(choices, list) and choices else {}


def _agreed(report: EngineReport, what: str, in_message: object, beside: object) -> list[Any] | None:
    """Return what a message and the answer around it both carry, or the one that is there."""
    one, other = _listed(report, what, in_message), _listed(report, what, beside)
    if one is not None and other is not None and one != other:
        report.conflict = f"the message holds other {what} ({len(one)}) than the answer around it ({len(other)})"
    return other if one is None else one


def _listed(report: EngineReport, what: str, value: object) -> list[Any] | None:
    if value is None or isinstance(value, list):
        return value
    report.malformed = f"{what}: a list of ids is needed, not {type(value).__name__}"
    return None


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
