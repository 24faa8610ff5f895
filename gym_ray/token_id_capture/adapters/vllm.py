"""Exact tokens from whole answers of vLLM, stock and patched, and of servers that answer alike.

Where they stand:

- stock Chat with ``return_token_ids``: ``prompt_token_ids`` at the top, ``token_ids`` in the choice;
- patched and older workers: ``prompt_token_ids``, ``generation_token_ids`` and ``generation_log_probs`` in the message,
  and ``routed_experts`` there or in the choice;
- ``return_tokens_as_token_ids``: ``token_id:<n>`` in place of each log prob's text;
- ``/inference/v1/generate``: as stock Chat, with the id beside each log prob and spans of weight versions;
- SGLang's own route: ``output_ids`` and ``meta_info.output_token_logprobs``.

Unknown and missing members are passed over; what is then not proven by the usage is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.token_id_capture.adapters.asked import Asked
from gym_ray.token_id_capture.adapters.settling import Told, counted, settle
from gym_ray.token_id_capture.exact_tokens import TokenOutcome

__all__ = ["EXPERTS_FIELD", "Asked", "take_ending", "tokens_of_chat_answer", "tokens_of_generate_answer"]

EXPERTS_FIELD: Final = "routed_experts"
"""Member with the routing of experts, in a choice, or in the message of one as patched workers put it there."""
_NOTHING_ASKED: Final = Asked()


def tokens_of_chat_answer(answer: Mapping[str, Any], asked: Asked = _NOTHING_ASKED) -> TokenOutcome:
    """Return the exact tokens of a whole Chat answer, or why they cannot be used; never raises.

    Args:
        answer: The answer as the engine gave it.
        asked: What its request says about it.
    """
    told = _told(answer)
    choice = _first_choice(answer)
    message = _object(choice.get("message"))
    told.prompt = _agreed(told, "prompt ids", message.get("prompt_token_ids"), answer.get("prompt_token_ids"))
    told.generation = _agreed(told, "generated ids", message.get("generation_token_ids"), choice.get("token_ids"))
    if not told.experts and message.get(EXPERTS_FIELD) is not None:
        told.experts.append(message[EXPERTS_FIELD])
    log_probs = message.get("generation_log_probs")
    if isinstance(log_probs, list):
        told.log_probs.take_values(log_probs)
    else:
        told.log_probs.take_items(_object(choice.get("logprobs")).get("content"))
    if told.generation is None and told.log_probs.named:
        told.generation = told.log_probs.named
    return settle(told, asked)


def tokens_of_generate_answer(answer: Mapping[str, Any], asked: Asked = _NOTHING_ASKED) -> TokenOutcome:
    """Return the exact tokens of an answer of ``/inference/v1/generate`` or of SGLang's ``/generate``; never raises.

    Args:
        answer: The answer as the engine gave it.
        asked: What the request says about it.
    """
    if isinstance(answer.get("meta_info"), Mapping):
        return _tokens_of_sglang_answer(answer, asked)
    told = _told(answer)
    choice = _first_choice(answer)
    told.prompt = _listed(told, "prompt_token_ids", answer.get("prompt_token_ids"))
    told.generation = _listed(told, "token_ids", choice.get("token_ids"))
    told.log_probs.take_items(_object(choice.get("logprobs")).get("content"))
    return settle(told, asked)


def take_ending(told: Told, choice: Mapping[str, Any]) -> None:
    """Take what a choice, or the last chunk of one, says about its end, its routing and its weights."""
    stop = choice.get("stop_reason")
    for name, value in (
        ("finish", choice.get("finish_reason")),
        ("stop", choice.get("matched_stop") if stop is None else stop),
        ("spans", choice.get("weight_versions")),
    ):
        if value is not None:
            setattr(told, name, value)
    if choice.get(EXPERTS_FIELD) is not None:
        told.experts.append(choice[EXPERTS_FIELD])


def _tokens_of_sglang_answer(answer: Mapping[str, Any], asked: Asked) -> TokenOutcome:
    told = Told()
    meta = _object(answer.get("meta_info"))
    prompt = answer.get("prompt_token_ids")
    told.prompt = _listed(told, "prompt ids", answer.get("input_ids") if prompt is None else prompt)
    told.generation = _listed(told, "output_ids", answer.get("output_ids"))
    pairs = meta.get("output_token_logprobs")
    told.log_probs.take_pairs(pairs if isinstance(pairs, list) else [])
    if told.generation is None and told.log_probs.named:
        told.generation = told.log_probs.named
    told.prompt_count, told.generated_count = counted(meta.get("prompt_tokens")), counted(meta.get("completion_tokens"))
    finish = _object(meta.get("finish_reason"))
    told.finish, told.stop = finish.get("type"), finish.get("matched")
    told.experts += [] if meta.get("routed_experts") is None else [meta["routed_experts"]]
    version = meta.get("weight_version")
    if version is not None and told.generated_count is not None:
        told.spans = [{"version": version, "start": 0, "end": told.generated_count}]
    return settle(told, asked)


def _told(answer: Mapping[str, Any]) -> Told:
    choices = answer.get("choices")
    told = Told(choices=len(choices) if isinstance(choices, list) else 0)
    told.take_usage(answer.get("usage"))
    take_ending(told, _first_choice(answer))
    return told


def _first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    return _object(choices[0]) if isinstance(choices, list) and choices else {}


def _agreed(told: Told, what: str, in_message: object, beside: object) -> list[Any] | None:
    """Return what a message and the answer around it both carry, or the one that is there."""
    one, other = _listed(told, what, in_message), _listed(told, what, beside)
    if one is not None and other is not None and one != other:
        told.conflict = f"the message holds other {what} ({len(one)}) than the answer around it ({len(other)})"
    return other if one is None else one


def _listed(told: Told, what: str, value: object) -> list[Any] | None:
    if value is None or isinstance(value, list):
        return value
    told.malformed = f"{what}: a list of ids is needed, not {type(value).__name__}"
    return None


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
