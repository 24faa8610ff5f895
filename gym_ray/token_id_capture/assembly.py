"""From the records of one rollout to its trajectory, with a verdict: deliver or mask, and why (B119, B120).

A rollout is masked whenever anything about it is unproved. Nothing that a capture holds makes these functions raise: a
capture that cannot be read or built gives a masked build with the error, because one bad rollout must not end a run.
Reading may freeze a capture; nothing here removes one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from gym_ray.token_id_capture.builder import (
    PER_REQUEST,
    PREFIX_MERGING,
    BuildOutput,
    run_builder,
)
from gym_ray.token_id_capture.building.projection import (
    assert_prefix_contiguity,
    main_chain,
    project_main_chain_response,
)
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.protocols import CaptureProblem, TokenCaptureSnapshot, TokenSource
from gym_ray.token_id_capture.reasons import BUILD_FAILED, CAPTURE_INCOMPLETE, FREEZE_FAILED, NO_TOKEN_RECORDS
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.row_json import row_as_json
from gym_ray.token_id_capture.rows import TrainingRow, training_rows
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.terminal import TerminalAttribution, resolve_terminal
from gym_ray.token_id_capture.verdict import JUDGED_BY_ROWS, attribution_metric, build_metrics, doubts_of

__all__ = [
    "AssembledRollout",
    "Ending",
    "RowsWanted",
    "assemble",
    "trajectories_for_rollout",
    "trajectories_from_source",
]


_ATTRIBUTION_ERROR: Final = "attribution_error"

_log = logging.getLogger(__name__)


RowsWanted = Literal["none", "main", "all"]
"""Which chains are laid out as training rows: none, the main one, or every chain."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known about how a rollout ended, from outside its capture (B112).

    Attributes:
        verified_response: The response object that was scored, None without one.
        explicit_terminal_call_id: The call that the agent named as its last.
        declared_response_id: The id of the response that the agent named as its last.
    """

    verified_response: Mapping[str, Any] | None = None
    explicit_terminal_call_id: str | None = None
    declared_response_id: str | None = None


@dataclass(frozen=True, slots=True)
class AssembledRollout:
    """A built rollout and its verdict.

    Attributes:
        rollout_id: The rollout.
        builder: Name of the builder.
        metrics: The contract's metrics (B120), and ``capture_problems`` (reason to count) where there are any.
        output: What was built, None if that failed.
        response: The main chain as a response with token arrays; None if it failed or was not asked for.
        mask_sample: Whether a trainer must skip the rollout.
        reasons: Codes of why it is masked: at least one if it is, none if it is not.
        problems: What the capture says is wrong with it.
        error: Why there is nothing to deliver, "" when there is.
        snapshot: Id and version of the snapshot that was built; None if there is none.
    """

    rollout_id: str
    builder: str
    metrics: dict[str, Any]
    output: BuildOutput | None = None
    response: dict[str, Any] | None = None
    mask_sample: bool = True
    reasons: tuple[str, ...] = ()
    problems: tuple[CaptureProblem, ...] = ()
    error: str = ""
    snapshot: tuple[str, int] | None = None

    def rows(
        self, *, branches: bool = False, shared_prefix_loss: Literal["first", "all"] = "first"
    ) -> list[TrainingRow]:
        """Return the training rows; none if nothing could be built.

        The main chain has this verdict. Where all chains are delivered, each is judged by itself, and by what the
        capture as a whole lost: that there are several is then no doubt any more.
        """
        if self.output is None:
            return []
        reasons = tuple(reason for reason in self.reasons if not (branches and reason in JUDGED_BY_ROWS))
        return training_rows(
            self.rollout_id,
            self.output,
            branches=branches,
            shared_prefix_loss=shared_prefix_loss,
            mask_sample=bool(reasons),
            reasons=reasons,
        )

    def as_build(self, rows: RowsWanted = "none") -> dict[str, Any]:
        """Return the build as the contract lays it out (B119, B120), with ``mask_reasons``, and rows if wanted."""
        build: dict[str, Any] = {
            "rollout_id": self.rollout_id,
            "builder": self.builder,
            "rebuilt_response": self.response,
            "mask_sample": self.mask_sample,
            "mask_reasons": list(self.reasons),
            "metrics": self.metrics,
        }
        if self.error:
            build["error"] = self.error
        elif self.output is not None:
            build["unresolved_retries"] = list(self.output.notes.unresolved_retries)
            build["unresolved_parent_calls"] = list(self.output.notes.unresolved_parent_calls)
        if rows != "none":
            build["training_rows"] = [row_as_json(row) for row in self.rows(branches=rows == "all")]
        if self.snapshot is not None:
            snapshot_id, version = self.snapshot
            build["_capture_snapshot"] = {"snapshot_id": snapshot_id, "version": version}
        return build


def trajectories_for_rollout(
    rollout_id: str,
    dirs: Sequence[Path | str],
    *,
    model: str = "",
    builder: str = PREFIX_MERGING,
    verified_response: Mapping[str, Any] | None = None,
    explicit_terminal_call_id: str | None = None,
    declared_response_id: str | None = None,
) -> dict[str, Any] | None:
    """Freeze a rollout's capture in the first of ``dirs`` and build it; None without a directory (B119).

    Blocks; for the other parameters and what is returned see :func:`trajectories_from_source`.
    """
    if not dirs:
        return None
    ending = Ending(verified_response, explicit_terminal_call_id, declared_response_id)
    try:
        snapshot = _frozen_in(dirs[0], rollout_id)
    except Exception as error:  # noqa: BLE001 - whatever a capture holds, its rollout is masked and the run goes on
        return _unfrozen(rollout_id, builder, error).as_build()
    return _assemble_snapshot(rollout_id, snapshot, model, builder, ending).as_build()


async def trajectories_from_source(
    rollout_id: str,
    source: TokenSource,
    *,
    model: str = "",
    builder: str = PREFIX_MERGING,
    verified_response: Mapping[str, Any] | None = None,
    explicit_terminal_call_id: str | None = None,
    declared_response_id: str | None = None,
    rows: RowsWanted = "none",
) -> dict[str, Any]:
    """Freeze a rollout's capture and build it, off the event loop, with one run of the builder (B119).

    Args:
        rollout_id: The rollout.
        source: Where its capture is.
        model: Model name of the rebuilt response.
        builder: Name of the builder.
        verified_response: The response that was scored.
        explicit_terminal_call_id: The call that the agent named as its last.
        declared_response_id: The id of the response that the agent named as its last.
        rows: Also lay out the main chain, or every chain, as ``training_rows``.

    Returns:
        The build (B119, B120): ``rollout_id``, ``builder``, ``rebuilt_response``, ``mask_sample``, ``mask_reasons``,
        ``metrics``; ``unresolved_retries`` and ``unresolved_parent_calls`` if it was built, else ``error``; and
        ``_capture_snapshot`` unless freezing failed. It never raises for what the capture holds.
    """
    ending = Ending(verified_response, explicit_terminal_call_id, declared_response_id)
    try:
        snapshot = await source.freeze(rollout_id)
    except Exception as error:  # noqa: BLE001 - whatever a source raises, its rollout is masked and the run goes on (B137)
        return _unfrozen(rollout_id, builder, error).as_build()

    def build() -> dict[str, Any]:
        return _assemble_snapshot(rollout_id, snapshot, model, builder, ending).as_build(rows)

    return await asyncio.to_thread(build)


def _frozen_in(directory: Path | str, rollout_id: str) -> TokenCaptureSnapshot:
    store = TokenCaptureStore(directory)
    try:
        with ThreadPoolExecutor(1) as thread:  # whoever blocks here may have an event loop of its own
            return thread.submit(asyncio.run, store.freeze(rollout_id)).result()
    finally:
        store.shut_down()


def _unfrozen(rollout_id: str, builder: str, error: Exception) -> AssembledRollout:
    message = f"{FREEZE_FAILED}: {type(error).__name__}: {error}"
    return AssembledRollout(rollout_id, builder, {"n_calls": 0}, error=message, reasons=(FREEZE_FAILED,))


def _assemble_snapshot(
    rollout_id: str, snapshot: TokenCaptureSnapshot, model: str, builder: str, ending: Ending
) -> AssembledRollout:
    assembled = assemble(
        rollout_id,
        snapshot.packed,
        incomplete=snapshot.incomplete,
        problems=snapshot.problems,
        ending=ending,
        builder=builder,
        model=model,
        project=True,
    )
    return replace(assembled, snapshot=(snapshot.snapshot_id, snapshot.version))


def assemble(
    rollout_id: str,
    entries: Sequence[TokenEntry | PackedEntry],
    *,
    incomplete: bool = False,
    problems: Sequence[CaptureProblem] = (),
    ending: Ending | None = None,
    builder: str = PREFIX_MERGING,
    model: str = "",
    project: bool = False,
) -> AssembledRollout:
    """Build the records of a rollout once and decide whether it can be trained on.

    Pure: nothing is read or written. Time and memory are linear in the tokens, except that a projected response
    repeats each prompt (B116).

    Args:
        rollout_id: The rollout.
        entries: Its records, in any order.
        incomplete: Something was lost, or may have been.
        problems: What is known to be wrong; any of them makes the rollout incomplete.
        ending: How the rollout ended.
        builder: Name of the builder.
        model: Model name of the projected response.
        project: Also render the main chain as a response with token arrays.
    """
    ending = ending or Ending()
    if not entries:
        message = f"{NO_TOKEN_RECORDS}: nothing was recorded of the tokens of rollout {rollout_id}"
        failed = AssembledRollout(rollout_id, builder, {"n_calls": 0}, error=message, reasons=(NO_TOKEN_RECORDS,))
        return _with_problems(failed, incomplete, problems)
    attribution = _attribute(entries, ending)
    try:
        built = _build(rollout_id, entries, attribution, ending, builder, model, project)
    except (AssertionError, ValueError, KeyError, IndexError, TypeError) as error:
        metrics = {"n_calls": len(entries), "terminal_attribution": attribution_metric(attribution, "error")}
        message = f"{BUILD_FAILED}: {type(error).__name__}: {error}"
        built = AssembledRollout(rollout_id, builder, metrics, error=message, reasons=(BUILD_FAILED,))
    return _with_problems(built, incomplete, problems)


def _attribute(entries: Sequence[TokenEntry | PackedEntry], ending: Ending) -> TerminalAttribution:
    try:
        return resolve_terminal(
            entries,
            ending.verified_response,
            ending.explicit_terminal_call_id,
            declared_response_id=ending.declared_response_id,
        )
    except Exception:  # noqa: BLE001 - whatever a response holds, a rollout without a known end can be built, and masked if need be
        _log.warning("%s: its last call could not be looked for", entries[0].rollout_id, exc_info=True)
        return TerminalAttribution(None, "", _ATTRIBUTION_ERROR)


def _build(
    rollout_id: str,
    entries: Sequence[TokenEntry | PackedEntry],
    attribution: TerminalAttribution,
    ending: Ending,
    builder: str,
    model: str,
    project: bool,
) -> AssembledRollout:
    if project and builder == PER_REQUEST:
        raise ValueError(f"builder {builder!r} makes one sequence a call, and a response holds one: take its rows")
    output = run_builder(entries, builder, attribution.model_call_id)
    response = None
    if not output.chains or builder != PER_REQUEST:
        main_chain(output)  # raises where there is nothing to deliver
    for chain in output.chains:
        chain.validate()
    if project:
        response = project_main_chain_response(rollout_id, output, model)
        assert_prefix_contiguity(response)
    reasons = doubts_of(output, attribution, is_end_declared=ending.declared_response_id is not None)
    return AssembledRollout(
        rollout_id,
        builder,
        build_metrics(len(entries), output, attribution),
        output=output,
        response=response,
        mask_sample=bool(reasons),
        reasons=reasons,
    )


def _with_problems(built: AssembledRollout, incomplete: bool, problems: Sequence[CaptureProblem]) -> AssembledRollout:
    """Mask what was built of an incomplete capture, and name what is wrong with it (B119, B150, W39)."""
    if not incomplete and not problems:
        return built
    metrics = built.metrics | {"capture_incomplete": True}
    named = Counter(problem.reason for problem in problems)
    if named:
        metrics["capture_problems"] = dict(named)
    reasons = tuple(dict.fromkeys((CAPTURE_INCOMPLETE, *named, *built.reasons)))
    return replace(built, metrics=metrics, mask_sample=True, reasons=reasons, problems=tuple(problems))
