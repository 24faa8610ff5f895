"""Puts the exact tokens of a finished attempt into its record, and removes the capture once that record is durable.

The order matters: first the calls end, then the capture is frozen, then the record is stored, and only then is the
capture removed. A rollout whose tokens are not proved keeps its evidence and is masked; so does a failed one
(B122-B124).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.evidence.run_result import RunResult
from gym_ray.rollouts.ports import AttemptJob
from gym_ray.rollouts.tokens.token_sources import BoundedSource, LossySource, StaleCaptures, StaleRows
from gym_ray.settings import RunSettings, TokenIdCaptureConfig
from gym_ray.token_id_capture.assembly import RowsWanted
from gym_ray.token_id_capture.config import build_ledger, build_source, build_token_source
from gym_ray.token_id_capture.delivery import (
    TOKEN_METRICS_FIELD,
    TRAINING_ROWS_FIELD,
    capture_build_can_retire,
    finalize_rollout_token_capture,
    mask_reasons,
    retire_rollout_token_capture,
)
from gym_ray.token_id_capture.mask_limit import MaskLimit
from gym_ray.token_id_capture.protocols import TokenSource
from gym_ray.token_id_capture.response_shapes import TOKEN_FIELDS
from gym_ray.token_id_capture.store import TokenCaptureStore

__all__ = ["FinalizedTokens", "TokenDelivery", "TokenPlan"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """What a run does with captured tokens; it travels to the processes that do it.

    Attributes:
        config: The block of the settings, enabled.
        capture_dir: The run's ``model_call_capture_dir`` if it is a directory, in use or not.
        agents: Names of the agents that take part.
        directory: Where the token files are, None when a sink of the user's own keeps the records.
    """

    config: TokenIdCaptureConfig
    capture_dir: Path | None
    agents: frozenset[str]
    directory: Path | None

    @classmethod
    def of(cls, settings: RunSettings) -> TokenPlan | None:
        """Return the plan of a run, None when it captures no tokens."""
        if not settings.token_id_capture.enabled:
            return None
        agents = frozenset(name for name in settings.servers if settings.trains(name))
        return cls(settings.token_id_capture, settings.shared_dir, agents, settings.token_dir)

    def delivery(self) -> TokenDelivery | None:
        """Open what puts tokens into records; None when responses are not rebuilt.

        Raises:
            SettingsError: The source cannot be made.
            CaptureError: The token directory cannot be created.
        """
        source = build_token_source(self.config, self.capture_dir)
        if source is None:
            return None
        config = self.config
        return TokenDelivery(source, self.agents, retire=config.retire_after_delivery, rows=config.training_rows)

    def stale_captures(self) -> StaleCaptures | None:
        """Open what deletes captures of an earlier run; None, with a warning, where nothing can.

        Raises:
            SettingsError: The source cannot be made.
            CaptureError: The token directory cannot be created.
        """
        if self.config.external_staging:
            return StaleCaptures(StaleRows(build_ledger(self.config, self.capture_dir)))
        if self.directory is not None:
            return StaleCaptures(TokenCaptureStore(self.directory))
        source = build_source(self.config)
        return None if source is None else StaleCaptures.of(source)

    def mask_limit(self) -> MaskLimit:
        """Return the limit of the run; it never ends one whose settings name no fraction."""
        config = self.config
        return MaskLimit(config.max_mask_fraction, config.mask_fraction_min_samples, config.mask_fraction_window)


@dataclass(frozen=True, slots=True)
class FinalizedTokens:
    """A result with its tokens.

    Attributes:
        result: The run's result; its reply holds the rebuilt response and the verdict.
        build: What was built, None when there was nothing to finalise.
        masked: Whether the record as a whole is masked, by its capture or by whoever scored it.
    """

    result: RunResult
    build: dict[str, Any] | None
    masked: bool = False


class TokenDelivery:
    """Finalises attempts of agents that take part in token capture.

    Args:
        source: Where the captures are; asked for a bounded time, and closed by :meth:`aclose`.
        agents: Names of the agents that take part.
        retire: Remove a capture once the record that holds its tokens is durable.
        rows: Which chains stand in the record as training rows.
    """

    def __init__(self, source: TokenSource, agents: frozenset[str], *, retire: bool, rows: RowsWanted = "none") -> None:
        self._source = BoundedSource(source)
        self._agents, self._retire, self._rows = agents, retire, rows

    def concerns(self, job: AttemptJob) -> bool:
        """Whether an attempt's agent takes part."""
        return job.agent in self._agents

    async def finalize(self, job: AttemptJob, result: RunResult, *, lost: bool = False) -> FinalizedTokens:
        """Return the result with its tokens; a failure, and what takes no part, comes back as it is. Never raises.

        Args:
            job: The attempt; the capture is found by its id and by nothing the reply says. Tokens, rows and verdicts of
                token capture that the reply itself brings are no evidence, and give way to what was captured.
            result: How its run ended.
            lost: A server says that it lost tokens of the attempt, and could not write that down yet.
        """
        if not self.concerns(job) or result.failure is not None or result.reply is None:
            return FinalizedTokens(result, None)
        record = await asyncio.to_thread(exact_json.loads_object, result.reply)
        if record is None:
            return FinalizedTokens(result, None)
        _drop_claims(record)
        record["_ng_rollout_id"] = job.rollout_id
        source = LossySource(self._source) if lost else self._source
        build = await finalize_rollout_token_capture(record, source, rows=self._rows)
        if build is None:
            return FinalizedTokens(result, None)
        if reasons := mask_reasons(build):
            record.setdefault(TOKEN_METRICS_FIELD, {})["mask_reasons"] = list(reasons)
        reply = await asyncio.to_thread(exact_json.dumps, record)
        return FinalizedTokens(replace(result, reply=reply), build, bool(record.get("mask_sample")))

    async def retire(self, job: AttemptJob, tokens: FinalizedTokens) -> None:
        """Remove the capture of an attempt whose record is durable; what is masked stays. Never raises."""
        if not self._retire or tokens.masked or not capture_build_can_retire(tokens.build):
            return
        if not await retire_rollout_token_capture(job.rollout_id, self._source, tokens.build):
            _log.warning("%s: its token capture changed after it was read, and is kept", job.rollout_id)

    async def aclose(self) -> None:
        """Close the source; never raises."""
        await self._source.close()


def _drop_claims(record: dict[str, Any]) -> None:
    """Take out of a reply what only a capture may say: whose it is, its tokens, and that it was looked at already."""
    for name in ("_ng_attempt_index", TOKEN_METRICS_FIELD, TRAINING_ROWS_FIELD):
        record.pop(name, None)
    response = record.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    for item in output if isinstance(output, list) else ():
        if isinstance(item, dict):
            for name in TOKEN_FIELDS:
                item.pop(name, None)
