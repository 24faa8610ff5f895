"""Joins finished attempts beside the storage: ask the servers, read the capture, join, append, forget (D59, D159).

A joiner holds one rollout at a time for each call in flight. Asking it twice for the same attempt stores one record.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from dataclasses import replace

import httpx

from gym_ray import exact_json
from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import CaptureError, StorageError
from gym_ray.evidence.join import Joined, JoinOptions, join
from gym_ray.evidence.run_result import RunResult
from gym_ray.evidence.summary import summarise
from gym_ray.model_call_capture.attachment import ATTACHMENT_FIELD
from gym_ray.model_call_capture.captures import open_captures
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.rollouts.joined_word import JoinedWord
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest
from gym_ray.rollouts.reports.facts_files import FactsWriter
from gym_ray.rollouts.run_files.parts_files import publish_parts
from gym_ray.rollouts.run_files.revoked_tries import JoinTry
from gym_ray.rollouts.run_files.run_log import RunOutputs, read_record
from gym_ray.rollouts.run_paths import RunPaths, Written
from gym_ray.rollouts.tokens.token_delivery import FinalizedTokens, TokenDelivery
from gym_ray.rollouts.tokens.token_tables import built_table

__all__ = ["Joiner"]

_log = logging.getLogger(__name__)


class Joiner:
    """Joins attempts of one run. Close it with :meth:`aclose`.

    Args:
        paths: Where the run writes; the run must have begun.
        captures: Where model calls are captured, None when capture is off.
        client: Used to ask model servers; a client of its own when None.
        quiesce_timeout_s: How long open calls may still end before they become a gap (D62).
        tokens: Puts exact tokens into the records of agents that take part, None when tokens are not captured; closed
            with the joiner.
        options: How evidence is built.
        token_tables: Hand the training rows of an attempt on as a table (``JoinOutcome.token_rows``).

    Raises:
        StorageError: The outputs cannot be opened.
        SettingsError: Nothing can open the place of the captures.
    """

    def __init__(
        self,
        paths: RunPaths,
        captures: CaptureLocation | None,
        *,
        client: httpx.AsyncClient | None = None,
        quiesce_timeout_s: float = 10.0,
        tokens: TokenDelivery | None = None,
        options: JoinOptions | None = None,
        token_tables: bool = False,
    ) -> None:
        self._outputs, self._facts = RunOutputs(paths), FactsWriter(paths)
        self._options = options or JoinOptions()
        self._captures = None if captures is None else open_captures(captures)
        # Servers are asked directly: a proxy of the environment is for the internet, not for the own nodes.
        self._client = client or httpx.AsyncClient(trust_env=False)
        self._owns_client = client is None
        self._word = None if self._captures is None else JoinedWord(self._captures, self._client)
        self._quiesce_timeout_s = quiesce_timeout_s
        self._tokens, self._token_tables = tokens, token_tables

    async def aclose(self) -> None:
        """Close files and connections; call it when no join is in flight."""
        if self._word is not None:
            await self._word.aclose()
        if self._owns_client:
            await self._client.aclose()
        if self._tokens is not None:
            await self._tokens.aclose()
        if self._captures is not None:
            self._captures.close()
        self._facts.close()
        self._outputs.close()

    async def join(self, job: AttemptJob, result: RunResult, request: JoinRequest) -> JoinOutcome:
        """Join and store one attempt; its record is durable when this returns, exactly once over all tries.

        Raises:
            StorageError: The record could not be stored, or this try was called back.
        """
        stored = None
        if request.retry:
            stored = await asyncio.to_thread(self._stored_before, job, result, request)
        if stored is None:
            stored = await self._join_anew(job, result, request)
        if self._word is not None:
            await self._word.tell(job.rollout_id)
        return stored

    def _stored_before(self, job: AttemptJob, result: RunResult, request: JoinRequest) -> JoinOutcome | None:
        written = self._outputs.find(job.rollout_id, request.mark)
        if written is None:
            return None
        record = exact_json.loads_object(read_record(self._outputs.paths, written)) or {}
        attached = record.get(ATTACHMENT_FIELD) if self._captures is not None and request.attach_capture else None
        summary = summarise(record, attached, job.rollout_id, result.latency_ms)
        return JoinOutcome(written, summary if self._trains(job) else replace(summary, token_mask_reasons=None))

    def _trains(self, job: AttemptJob) -> bool:
        return self._tokens is not None and self._tokens.concerns(job)

    async def _join_anew(self, job: AttemptJob, result: RunResult, request: JoinRequest) -> JoinOutcome:
        calls = await self._written_calls(job) if request.attach_capture else None
        tokens = FinalizedTokens(result, None)
        if self._tokens is not None:  # behind the list of calls, so that those that were still open have ended
            lost = calls is not None and calls.tokens_lost
            tokens = await self._tokens.finalize(job, result, lost=lost)
        outcome = await asyncio.to_thread(self._join_and_append, job, tokens, calls, request)
        if self._tokens is not None and outcome.written is not None and outcome.written.file == "main":
            await self._tokens.retire(job, tokens)
        if not self._token_tables:
            return outcome
        return replace(outcome, token_rows=await asyncio.to_thread(built_table, job.rollout_id, tokens.build))

    async def _written_calls(self, job: AttemptJob) -> WrittenCalls | None:
        if self._captures is None:
            return None
        begun_at = job.begun_at or None
        try:
            listed = await self._captures.written_calls(
                [job.rollout_id], client=self._client, timeout_s=self._quiesce_timeout_s, begun_at=begun_at
            )
        except (CaptureError, StorageError) as error:
            # The result is kept all the same; its record says that nobody knows what was written.
            _log.error("%s: the writers of its calls cannot be listed: %s", job.rollout_id, error)
            return WrittenCalls(unreachable_writers=("unknown",))
        return listed[job.rollout_id]

    def _join_and_append(
        self, job: AttemptJob, tokens: FinalizedTokens, calls: WrittenCalls | None, request: JoinRequest
    ) -> JoinOutcome:
        snapshot = self._snapshot(job.rollout_id, calls)
        joined = join(
            job.row,
            job.rollout_id,
            tokens.result,
            snapshot,
            calls,
            terminal=request.terminal,
            options=self._options,
            trains=self._trains(job),
        )
        return JoinOutcome(self._append(JoinTry(job.rollout_id, request.number), joined), joined.summary)

    def _snapshot(self, rollout_id: str, calls: WrittenCalls | None) -> CaptureSnapshot | None:
        return None if self._captures is None or calls is None else self._captures.snapshot(rollout_id, calls)

    def _append(self, of_try: JoinTry, joined: Joined) -> Written | None:
        """Store a record, behind everything that it refers to: what leads nowhere must never be durable."""
        if joined.destination == "nowhere":
            return None
        if joined.source is not None:
            self._outputs.append_source(joined.source, of_try=of_try)
        if joined.parts is not None:
            alone = functools.partial(self._outputs.alone, of_try)
            publish_parts(self._outputs.paths, of_try.rollout_id, joined.parts, alone=alone)
        written = self._outputs.append(joined.destination, joined.line, of_try=of_try)
        self._facts.append(written, joined.facts)
        return written
