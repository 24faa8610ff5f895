"""Exact tokens from the chunks of a streamed Chat answer, while it flows.

Only ids and log probabilities are kept, eight bytes each, and no chunk. A chunk with ids and no text counts like any
other, and the usage at the end proves that none was lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from gym_ray.token_id_capture.adapters.engine_report import EngineReport, token_outcome
from gym_ray.token_id_capture.adapters.request_facts import RequestFacts
from gym_ray.token_id_capture.adapters.vllm import take_ending
from gym_ray.token_id_capture.exact_tokens import TokenOutcome
from gym_ray.token_id_capture.token_arrays import TokenArray, pack_token_ids

__all__ = ["ChatTokenStream"]


class ChatTokenStream:
    """Collects what the chunks of one stream say about its tokens.

    Args:
        request: What its request says about them.
    """

    __slots__ = ("_ids", "_ids_came", "_prompt", "_report", "_request")

    def __init__(self, request: RequestFacts | None = None) -> None:
        self._request = request or RequestFacts()
        self._report = EngineReport()
        self._prompt: TokenArray | None = None
        self._ids = array("Q")
        self._ids_came = False

    @property
    def prompt(self) -> TokenArray | None:
        """The prompt's ids, known from the first chunk on; None until then."""
        return self._prompt

    def feed(self, chunk: Mapping[str, Any]) -> None:
        """Take the next chunk; members of unexpected types are remembered as malformed, and nothing raises."""
        report = self._report
        self._take_prompt(chunk.get("prompt_token_ids"))
        report.take_usage(chunk.get("usage"))
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, Mapping):
                continue
            index = choice.get("index")
            if index not in (0, None):
                report.choices = max(report.choices, index + 1 if type(index) is int else 2)
            else:
                self._take_choice(choice)

    def outcome(self) -> TokenOutcome:
        """Return the exact tokens of the stream, or why they cannot be used; valid once it has ended."""
        report = self._report
        report.prompt = self._prompt
        report.generation = self._ids if self._ids_came else None
        if report.generation is None and report.log_probs.named:
            report.generation = report.log_probs.named
        return token_outcome(report, self._request)

    def _take_prompt(self, ids: object) -> None:
        if ids is None:
            return
        try:
            prompt = pack_token_ids(ids)  # type: ignore[arg-type]  # it refuses what is no sequence
        except ValueError as error:
            self._report.malformed = f"prompt_token_ids: {error}"
            return
        known = self._prompt
        if known is None:
            self._prompt = prompt
        elif prompt.size != known.size or (prompt != known).any():
            self._report.conflict = f"two chunks hold different prompt ids ({known.size} and {prompt.size})"

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        report = self._report
        take_ending(report, choice)
        ids = choice.get("token_ids")
        before = len(self._ids), len(report.log_probs)
        if ids is not None:
            self._ids_came = True
            self._take_ids(ids)
        log_probs = choice.get("logprobs")
        if isinstance(log_probs, Mapping):
            report.log_probs.take_items(log_probs.get("content"))
        if self._ids_came and not report.uneven:
            report.uneven = self._unevenness(*before)

    def _take_ids(self, ids: object) -> None:
        if not isinstance(ids, list):
            self._report.malformed = f"token_ids: a list of ids is needed, not {type(ids).__name__}"
            return
        try:
            self._ids.extend(ids)
        except (TypeError, OverflowError) as error:
            self._report.malformed = f"token_ids at generated token {len(self._ids)}: {error}"

    def _unevenness(self, ids_before: int, log_probs_before: int) -> str:
        """Return how one chunk's log probabilities do not belong to its ids, "" when each has its own."""
        values = self._report.log_probs.values
        ids, log_probs = len(self._ids) - ids_before, len(values) - log_probs_before
        if ids == log_probs:
            return ""
        kind = "trailing" if log_probs > ids else "missing"
        if log_probs == len(self._ids) and values[log_probs_before:][:log_probs_before] == values[:log_probs_before]:
            kind = "cumulative"
        return f"{kind}: a chunk holds {ids} ids and {log_probs} log probs, from generated token {ids_before} on"
