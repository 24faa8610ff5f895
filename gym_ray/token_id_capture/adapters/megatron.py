"""Reads the offloaded payload of a Megatron engine for a worker that stages its own calls (C138, C139)."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from gym_ray.token_id_capture.adapters.answer_tokens import BUFFERS, enter_prefix, id_buffer, log_prob_buffer
from gym_ray.token_id_capture.token_arrays import LogProbs, TokenIds

__all__ = ["MegatronCaptureAdapter"]


class MegatronCaptureAdapter:
    """Takes ``prompt_token_ids``, ``generated_token_ids`` and ``generated_log_probs`` from a payload.

    They are members of a mapping, or attributes. Lists hold exact integers and numbers; arrays are taken as they are.
    """

    def enter_prefix(self, request: MutableMapping[str, Any], prefix_token_ids: TokenIds) -> MutableMapping[str, Any]:
        """Put a copy of the prefix into a request as ``required_prefix_token_ids`` and return the request (C130)."""
        return enter_prefix(request, prefix_token_ids)

    def extract_prompt_ids(self, payload: Any) -> TokenIds:
        """Return the ids of the prompt.

        Raises:
            ValueError: They are missing, no sequence, or one is no exact integer; its index is named.
        """
        return _ids(payload, "prompt_token_ids")

    def extract_generation(self, payload: Any) -> tuple[TokenIds, LogProbs]:
        """Return the sampled ids and their log probabilities.

        Raises:
            ValueError: They are missing, no sequences, of different lengths, or one is no exact integer or no number;
                its index is named.
        """
        ids, log_probs = _ids(payload, "generated_token_ids"), _log_probs(payload, "generated_log_probs")
        if len(ids) != len(log_probs):
            raise ValueError(f"{len(ids)} generated_token_ids have {len(log_probs)} generated_log_probs")
        return ids, log_probs

    def extract_extras(self, payload: Any) -> dict[str, Any] | None:  # noqa: ARG002 - the protocol's signature
        """Return None: the engine's routes are one row shorter than its tokens, which no staged route may be (C139)."""
        return None


def _ids(payload: Any, name: str) -> TokenIds:
    values = _member(payload, name)
    if isinstance(values, BUFFERS):
        return id_buffer(values, name)
    listed = list(values)
    if not set(map(type, listed)) <= {int}:
        at = next(at for at, value in enumerate(listed) if type(value) is not int)
        raise ValueError(f"{name}: index {at}: {listed[at]!r} is no token id")
    return listed


def _log_probs(payload: Any, name: str) -> LogProbs:
    values = _member(payload, name)
    if isinstance(values, BUFFERS):
        return log_prob_buffer(values, name)
    for at, value in enumerate(values):
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{name}: index {at}: {value!r} is no log probability")  # noqa: TRY004 - C138
    return [float(value) for value in values]


def _member(payload: Any, name: str) -> Any:
    values = payload.get(name) if isinstance(payload, Mapping) else getattr(payload, name, None)
    if isinstance(values, BUFFERS):
        return values
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        raise ValueError(f"{name}: a list is needed, not {type(values).__name__}")  # noqa: TRY004 - C138
    return values
