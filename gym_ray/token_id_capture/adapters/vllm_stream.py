"""Exact tokens from the chunks of a streamed Chat answer, while it flows.

Only ids and log probabilities are kept, eight bytes each: a stream's memory does not grow with its chunks. Chunks that
carry ids and no text count like any other, and the usage at the end proves that none was swallowed (B33).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from gym_ray.token_id_capture.adapters.asked import Asked
from gym_ray.token_id_capture.adapters.settling import Told, settle
from gym_ray.token_id_capture.adapters.vllm import take_ending
from gym_ray.token_id_capture.exact_tokens import TokenOutcome
from gym_ray.token_id_capture.packed import TokenArray, pack_token_ids

__all__ = ["ChatTokenStream"]


class ChatTokenStream:
    """Collects what the chunks of one stream say about its tokens.

    Args:
        asked: What the request says about them.
    """

    __slots__ = ("_asked", "_ids", "_ids_came", "_prompt", "_told")

    def __init__(self, asked: Asked | None = None) -> None:
        self._asked = asked or Asked()
        self._told = Told()
        self._prompt: TokenArray | None = None
        self._ids = array("Q")
        self._ids_came = False

    @property
    def prompt(self) -> TokenArray | None:
        """The prompt's ids, known from the first chunk on; None until then."""
        return self._prompt

    def feed(self, chunk: Mapping[str, Any]) -> None:
        """Take the next chunk; members of unexpected types are remembered as malformed, and nothing raises."""
        told = self._told
        self._take_prompt(chunk.get("prompt_token_ids"))
        told.take_usage(chunk.get("usage"))
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, Mapping):
                continue
            index = choice.get("index")
            if index not in (0, None):
                told.choices = max(told.choices, index + 1 if type(index) is int else 2)
            else:
                self._take_choice(choice)

    def outcome(self) -> TokenOutcome:
        """Return the exact tokens of the stream, or why they cannot be used; valid once it has ended."""
        told = self._told
        told.prompt = self._prompt
        told.generation = self._ids if self._ids_came else None
        if told.generation is None and told.log_probs.named:
            told.generation = told.log_probs.named
        return settle(told, self._asked)

    def _take_prompt(self, ids: object) -> None:
        if ids is None:
            return
        try:
            prompt = pack_token_ids(ids)  # type: ignore[arg-type]  # it refuses what is no sequence
        except ValueError as error:
            self._told.malformed = f"prompt_token_ids: {error}"
            return
        known = self._prompt
        if known is None:
            self._prompt = prompt
        elif prompt.size != known.size or (prompt != known).any():
            self._told.conflict = f"two chunks hold different prompt ids ({known.size} and {prompt.size})"

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        told = self._told
        take_ending(told, choice)
        ids = choice.get("token_ids")
        before = len(self._ids), len(told.log_probs)
        if ids is not None:
            self._ids_came = True
            self._take_ids(ids)
        log_probs = choice.get("logprobs")
        if isinstance(log_probs, Mapping):
            told.log_probs.take_items(log_probs.get("content"))
        if self._ids_came and not told.uneven:
            told.uneven = self._unevenness(*before)

    def _take_ids(self, ids: object) -> None:
        if not isinstance(ids, list):
            self._told.malformed = f"token_ids: a list of ids is needed, not {type(ids).__name__}"
            return
        try:
            self._ids.extend(ids)
        except (TypeError, OverflowError) as error:
            self._told.malformed = f"token_ids at generated token {len(self._ids)}: {error}"

    def _unevenness(self, ids_before: int, log_probs_before: int) -> str:
        """Return how one chunk's log probabilities do not belong to its ids, "" when each has its own."""
        values = self._told.log_probs.values
        ids, log_probs = len(self._ids) - ids_before, len(values) - log_probs_before
        if ids == log_probs:
            return ""
        kind = "trailing" if log_probs > ids else "missing"
        if log_probs == len(self._ids) and values[log_probs_before:][:log_probs_before] == values[:log_probs_before]:
            kind = "cumulative"
        return f"{kind}: a chunk holds {ids} ids and {log_probs} log probs, from generated token {ids_before} on"
