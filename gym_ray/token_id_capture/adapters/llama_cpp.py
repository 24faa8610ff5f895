"""Reads answers of llama.cpp's ``/completion`` for a worker that stages its own calls.

Only this route tells every sampled id. Its Chat route loses tokens, and is never read. A request of ids with
``return_tokens`` and ``n_probs`` brings ``tokens`` and ``completion_probabilities``; the prompt's ids are what the
worker sent, and stand in ``prompt_token_ids`` beside the engine's own members. The engine's counters prove both.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from gym_ray.token_id_capture.adapters.answer_tokens import enter_prefix, exact_ids, exact_log_probs
from gym_ray.token_id_capture.token_arrays import LogProbs, TokenIds

__all__ = ["LlamaCppCaptureAdapter"]


class LlamaCppCaptureAdapter:
    """Takes tokens and log probabilities out of a whole ``/completion`` answer."""

    def enter_prefix(self, request: MutableMapping[str, Any], prefix_token_ids: TokenIds) -> MutableMapping[str, Any]:
        """Put a copy of the prefix into a request as ``required_prefix_token_ids`` and return the request (C130)."""
        return enter_prefix(request, prefix_token_ids)

    def extract_prompt_ids(self, payload: Mapping[str, Any]) -> TokenIds:
        """Return the ids that were sent, which the worker put into ``prompt_token_ids``.

        Raises:
            TypeError: They are no sequence.
            ValueError: One is no id, the engine cut the prompt, or it evaluated another number of tokens.
        """
        ids = exact_ids(payload.get("prompt_token_ids"), "prompt_token_ids")
        if payload.get("truncated") is True:
            raise ValueError("the engine says that it cut the prompt")
        _check_count(payload, "tokens_evaluated", len(ids), "prompt ids")
        return ids

    def extract_generation(self, payload: Mapping[str, Any]) -> tuple[TokenIds, LogProbs]:
        """Return the sampled ids and their log probabilities.

        Raises:
            KeyError: An item of ``completion_probabilities`` lacks its id or its log probability.
            TypeError: Tokens or items are no sequence, or a log probability is no number.
            ValueError: The engine's counter says another number of tokens, or an item is of another token: a stop text,
                for one, leaves tokens without a log probability.
        """
        ids = exact_ids(payload.get("tokens"), "tokens")
        _check_count(payload, "tokens_predicted", len(ids), "tokens")
        items = payload.get("completion_probabilities")
        if not isinstance(items, list):
            raise TypeError(f"completion_probabilities: a list is needed, not {type(items).__name__}; send n_probs: 1")
        if len(items) != len(ids):
            raise ValueError(f"{len(ids)} tokens have {len(items)} completion_probabilities")
        for at, (token_id, item) in enumerate(zip(ids, items, strict=True)):
            if item["id"] != token_id:
                raise ValueError(
                    f"completion_probabilities {at} is of token {item['id']}, the token there is {token_id}"
                )
        return ids, exact_log_probs([item["logprob"] for item in items], "completion_probabilities")

    def extract_extras(self, payload: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: ARG002 - the protocol's signature
        """Return None: the engine reports nothing else about its tokens."""
        return None


def _check_count(payload: Mapping[str, Any], counter: str, found: int, what: str) -> None:
    counted = payload.get(counter)
    if type(counted) is not int or counted != found:
        raise ValueError(f"there are {found} {what}, the engine's {counter} says {counted!r}")
