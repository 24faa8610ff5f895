"""Reads Chat answers of vLLM for a worker that stages its own calls, from stock and from patched engines (C131-C137).

Where the tokens stand:

- patched workers: ``prompt_token_ids``, ``generation_token_ids`` and ``generation_log_probs`` in the message;
- stock Chat with ``return_token_ids``, and ``/inference/v1/generate``: ``prompt_token_ids`` at the top, ``token_ids``
  in the choice, one log probability for each in ``logprobs.content``;
- ``return_tokens_as_token_ids``: ``token_id:<n>`` as the text of each log probability.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from gym_ray.token_id_capture.adapters.answer_tokens import (
    ID_PREFIX,
    enter_prefix,
    exact_ids,
    exact_log_probs,
    lax_ids,
    lax_log_probs,
    token_id_of,
)
from gym_ray.token_id_capture.adapters.route_alignment import CallLengths, aligned_routes
from gym_ray.token_id_capture.token_arrays import LogProbs, TokenIds

__all__ = ["VLLMCaptureAdapter"]

_ROUTES: Final = "routed_experts"
_ROUTES_START: Final = "routed_experts_prompt_start"
_SPANS: Final = "media_spans"
_OLD_MEDIA: Final = "media"


class VLLMCaptureAdapter:
    """Takes tokens, log probabilities and extras out of a Chat answer with one choice.

    Args:
        strict: Refuse ids and log probabilities that are no integers and no numbers (C326). Without it they are
            converted as ``int()`` and ``float()`` convert (C135).
    """

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict

    def enter_prefix(self, request: MutableMapping[str, Any], prefix_token_ids: TokenIds) -> MutableMapping[str, Any]:
        """Put a copy of the prefix into a request as ``required_prefix_token_ids`` and return the request (C130)."""
        return enter_prefix(request, prefix_token_ids)

    def extract_prompt_ids(self, payload: Mapping[str, Any]) -> TokenIds:
        """Return the ids of the prompt, from the top of the answer or else from its message (C131).

        Raises:
            TypeError: They are no sequence.
            ValueError: There are none, or one is no id.
        """
        ids = payload.get("prompt_token_ids")
        if ids is None:
            ids = _message(_single_choice(payload)).get("prompt_token_ids")
        if ids is None:
            raise ValueError("neither the answer nor its message holds prompt_token_ids")
        return exact_ids(ids, "prompt_token_ids") if self._strict else lax_ids(ids, int)

    def extract_generation(self, payload: Mapping[str, Any]) -> tuple[TokenIds, LogProbs]:
        """Return the sampled ids and their log probabilities (C133, C134).

        Raises:
            KeyError: A log probability is missing from its item.
            TypeError: Ids or log probabilities are no sequence, or a log probability is no number.
            ValueError: There are none, one is no id, or their numbers differ.
        """
        choice = _single_choice(payload)
        message = _message(choice)
        if "generation_token_ids" in message and "generation_log_probs" in message:
            ids, log_probs = message["generation_token_ids"], message["generation_log_probs"]
        else:
            ids, log_probs = _of_log_prob_items(choice, strict=self._strict)
        if self._strict:
            ids, log_probs = exact_ids(ids, "generation ids"), exact_log_probs(log_probs, "generation log probs")
        else:
            ids, log_probs = lax_ids(ids, _lax_generated_id), lax_log_probs(log_probs)
        if len(ids) != len(log_probs):
            raise ValueError(f"{len(ids)} generated ids have {len(log_probs)} log probabilities")
        return ids, log_probs

    def extract_extras(self, payload: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return ``routed_experts`` and ``media_spans`` where the answer has them, unchanged, else None (C136).

        Raises:
            ValueError: One is of a type that it cannot be, or the answer holds a summary of media in an older format.
        """
        choice = _single_choice(payload)
        _refuse_old_media(payload, _message(choice))
        extras: dict[str, Any] = {}
        routes = _message(choice).get(_ROUTES)
        if routes is None:
            routes = choice.get(_ROUTES)
        if routes is not None:
            if not isinstance(routes, str | dict | list):
                raise ValueError(f"routed_experts are text, an object or a list, not {type(routes).__name__}")
            extras[_ROUTES] = routes
        if _SPANS in payload:
            extras[_SPANS] = _checked_spans(payload[_SPANS])
        return extras or None

    def align_extras(
        self,
        extras: dict[str, Any] | None,
        payload: Mapping[str, Any],
        *,
        prev_len: int,
        prompt_len: int,
        generation_len: int,
    ) -> dict[str, Any] | None:
        """Return the extras with expert routes cut to the tokens that a call stages, where that is beyond doubt (C344).

        Args:
            extras: What :meth:`extract_extras` returned.
            payload: The answer; a worker that had the engine leave out routes says how many tokens in its member
                ``routed_experts_prompt_start``.
            prev_len: Tokens of the parent's chain.
            prompt_len: Tokens of the prompt.
            generation_len: Tokens that were sampled.
        """
        if not extras or _ROUTES not in extras:
            return extras
        start = payload.get(_ROUTES_START)
        lengths = CallLengths(prev_len, prompt_len, generation_len)
        routes = aligned_routes(extras[_ROUTES], lengths, start if type(start) is int else None)
        aligned = {name: value for name, value in extras.items() if name != _ROUTES}
        return aligned | ({} if routes is None else {_ROUTES: routes}) or None


def _single_choice(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the only choice (C132).

    Raises:
        ValueError: There are none or several, or it is no object.
    """
    choices = payload.get("choices")
    if not isinstance(choices, list | tuple) or len(choices) != 1:
        found = len(choices) if isinstance(choices, list | tuple) else "none"
        raise ValueError(f"a captured answer has exactly one choice, and this one has {found}")
    if not isinstance(choices[0], Mapping):
        raise ValueError(f"the choice is no object but {type(choices[0]).__name__}")  # noqa: TRY004 - C132
    return choices[0]


def _message(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    message = choice.get("message") or {}
    if not isinstance(message, Mapping):
        raise ValueError(f"the message is no object but {type(message).__name__}")  # noqa: TRY004 - C132
    return message


def _of_log_prob_items(choice: Mapping[str, Any], *, strict: bool) -> tuple[Any, Any]:
    """Return what ``logprobs.content`` says, with the choice's own ``token_ids`` where stock vLLM has them."""
    content = (choice.get("logprobs") or {}).get("content")
    if content is None:
        raise ValueError("the answer holds neither generation_token_ids with generation_log_probs nor logprobs.content")
    log_probs = [item["logprob"] for item in content]
    ids = choice.get("token_ids")
    if ids is None:
        return [_id_of_item(item, at, strict=strict) for at, item in enumerate(content)], log_probs
    for at, (token_id, item) in enumerate(zip(ids, content, strict=False)):
        named = _named_id(item)
        if named is not None and named != token_id:
            raise ValueError(f"log prob {at} is of token {named}, the id there is {token_id}")
    return ids, log_probs


def _id_of_item(item: Mapping[str, Any], at: int, *, strict: bool) -> Any:
    """Return what stands for the id of an item, unread.

    Raises:
        KeyError: The item has neither an id nor a token.
        ValueError: It has the text of a token and no id, and only looks as if: an answer of digits (C326).
    """
    if "token_id" in item:
        return item["token_id"]
    token = item["token"]
    if strict and item.get("bytes") is not None and not str(token).startswith(ID_PREFIX):
        raise ValueError(f"generation ids: index {at}: {token!r} is no token id but text, whose bytes stand beside it")
    return token


def _named_id(item: Mapping[str, Any]) -> int | None:
    """Return the id that stands beside a log probability; a token's text is none."""
    if "token_id" in item:
        return token_id_of(item["token_id"], "logprobs.content")
    text = item.get("token")
    if isinstance(text, str) and text[len(ID_PREFIX) :].isdigit() and text.startswith(ID_PREFIX):
        return token_id_of(text, "logprobs.content")
    return None


def _lax_generated_id(value: object) -> int:
    return int(str(value).removeprefix(ID_PREFIX))


def _refuse_old_media(*holders: Mapping[str, Any]) -> None:
    """Refuse a worker that still sends ``media``: passed over, its pictures would be lost without a word.

    Raises:
        ValueError: One of the objects holds it.
    """
    if any(holder.get(_OLD_MEDIA) is not None for holder in holders):
        raise ValueError(
            "the answer holds a summary of media under 'media', an older format that is not staged any more; a worker "
            "says where media lie in media_spans, and gives the media as attachments"
        )


def _checked_spans(spans: object) -> list[Any]:
    if not isinstance(spans, list) or not all(isinstance(span, Mapping) for span in spans):
        raise ValueError(f"media_spans are a list of objects, not {spans!r:.100}")
    return spans
