"""Puts the exact tokens of a finished rollout into its record, and removes the capture when that is safe (B121-B124).

Finalising never raises and never removes anything: an unproved rollout is masked and keeps its evidence. Retiring is a
separate step, for a caller that knows that the record is durable.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping, Sized
from typing import Any, Final

from gym_ray.correlation import derive_rollout_id
from gym_ray.token_id_capture.assembly import RowsWanted, trajectories_for_rollout, trajectories_from_source
from gym_ray.token_id_capture.protocols import TokenSource
from gym_ray.token_id_capture.reasons import ALREADY_MASKED, FINALISATION_FAILED, MALFORMED_ROLLOUT_ID, NO_CAPTURE_KEY

__all__ = [
    "TOKEN_METRICS_FIELD",
    "TRAINING_ROWS_FIELD",
    "capture_build_can_retire",
    "finalize_rollout_token_capture",
    "mask_reasons",
    "retire_rollout_token_capture",
    "trajectories_for_rollout",
    "trajectories_from_source",
]

TOKEN_METRICS_FIELD: Final = "_ng_token_capture"  # noqa: S105 - a member's name, not a secret
"""Member of a record that says what its token capture gave (B123), and why its tokens are masked."""
TRAINING_ROWS_FIELD: Final = "_ng_training_rows"
"""Member of a record that holds its training rows."""

_log = logging.getLogger(__name__)


async def finalize_rollout_token_capture(
    result: MutableMapping[str, Any], source: TokenSource | None, *, rows: RowsWanted = "none"
) -> dict[str, Any] | None:
    """Freeze and build the capture of a finished rollout, and put what it proves into its record (B122, B123).

    ``response.output`` becomes the main chain with its tokens, or the chain becomes the response where there is none;
    ``_ng_token_capture`` becomes the metrics, with the error if there is one; ``mask_sample`` becomes true if the
    rollout is masked and is never cleared. A record that has tokens already, or that an earlier finalisation masked,
    stays as it is. Training rows, if wanted, become ``_ng_training_rows``: with ``all`` each chain is a row with a
    verdict of its own, also where the record as a whole is masked because it has several. Rows of a record that was
    masked before, by whoever scored it, are masked with it.

    Never raises for what the record, the source or the capture hold, and never retires anything.

    Args:
        result: The record, changed in place.
        source: Where the capture is; None does nothing.
        rows: Which chains are put into the record as training rows.

    Returns:
        The build of :func:`~gym_ray.token_id_capture.assembly.trajectories_from_source`, for retiring and for counting
        masks. For a record left as it is: ``_redundant_capture`` true if it has tokens, and ``mask_sample`` as the
        record says (W29), so that what a mask stands for is never retired by a second finalisation. None if there was
        nothing to do, or nothing that could be retired.
    """
    if source is None:
        return None
    try:
        rollout_id = derive_rollout_id(result)
    except (ValueError, OverflowError) as error:  # also for numbers that no index can be
        return _refuse(result, MALFORMED_ROLLOUT_ID, f"malformed rollout id: {error}")
    if _is_settled(result):
        return await _settled(result, rollout_id, source)
    if rollout_id is None:
        problem = "no capture key: the record has neither _ng_rollout_id nor _ng_task_index and _ng_rollout_index"
        return _refuse(result, NO_CAPTURE_KEY, problem)
    try:
        build = await _build(result, rollout_id, source, rows)
        if result.get("mask_sample"):
            _mask_rows(build)
        _put_into(result, build)
    except Exception as error:  # noqa: BLE001 - one rollout's capture must not end a run; it is masked and says why (B122)
        _log.warning("%s: token capture could not be finalised", rollout_id, exc_info=True)
        problem = f"{FINALISATION_FAILED}: {type(error).__name__}: {error}"
        return _refuse(result, FINALISATION_FAILED, problem, rollout_id)
    return build


def capture_build_can_retire(build: Mapping[str, Any] | None) -> bool:
    """Whether the capture behind a build is no longer needed once the record is durable (B124)."""
    if not build or build.get("mask_sample"):
        return False
    return build.get("rebuilt_response") is not None or bool(build.get("_redundant_capture"))


async def retire_rollout_token_capture(
    rollout_id: str, source: TokenSource | None, build: Mapping[str, Any] | None
) -> bool:
    """Drop a capture whose record is durable; call it only then (B124).

    Returns:
        Whether it is gone. False if the build does not allow it, if anything was added to the capture since it was
        frozen, or if the source failed. Never raises.
    """
    snapshot = (build or {}).get("_capture_snapshot")
    if source is None or not snapshot or not capture_build_can_retire(build):
        return False
    try:
        return bool(await source.drop(rollout_id, snapshot_id=snapshot["snapshot_id"], version=snapshot["version"]))
    except Exception as error:  # noqa: BLE001 - evidence that stays costs disk space; a run must not end for it
        _log.warning("%s: its token capture could not be dropped and stays: %r", rollout_id, error)
        return False


def mask_reasons(build: Mapping[str, Any]) -> tuple[str, ...]:
    """Return codes of why a build is masked, at least one; none if it is not. For ``MaskLimit.note`` (B125)."""
    if not build.get("mask_sample"):
        return ()
    return tuple(build.get("mask_reasons") or ()) or (str(build.get("error") or "unknown"),)


def _is_settled(result: Mapping[str, Any]) -> bool:
    """Whether the record says enough: it has tokens, or an earlier finalisation masked it (B122, W29)."""
    return _has_tokens(result) or bool(TOKEN_METRICS_FIELD in result and result.get("mask_sample"))


def _has_tokens(result: Mapping[str, Any]) -> bool:
    response = result.get("response")
    output = response.get("output") if isinstance(response, Mapping) else None
    if not isinstance(output, list | tuple):
        return False
    return any(isinstance(item, Mapping) and _is_filled(item.get("generation_token_ids")) for item in output)


def _is_filled(ids: object) -> bool:
    return isinstance(ids, Sized) and len(ids) > 0


async def _settled(result: Mapping[str, Any], rollout_id: str | None, source: TokenSource) -> dict[str, Any] | None:
    if rollout_id is None:
        return None
    try:
        snapshot = await source.freeze(rollout_id)
    except Exception as error:  # noqa: BLE001 - the record is complete without its capture, which stays where it is
        _log.warning("%s: its token capture could not be frozen and stays: %r", rollout_id, error)
        return None
    masked = bool(result.get("mask_sample"))
    build: dict[str, Any] = {"rebuilt_response": None, "mask_sample": masked}
    if masked:
        build["mask_reasons"] = [ALREADY_MASKED]
    if _has_tokens(result):
        build["_redundant_capture"] = True
    return build | {"_capture_snapshot": {"snapshot_id": snapshot.snapshot_id, "version": snapshot.version}}


async def _build(result: Mapping[str, Any], rollout_id: str, source: TokenSource, rows: RowsWanted) -> dict[str, Any]:
    response = result.get("response")
    verified = response if isinstance(response, Mapping) and response else None
    return await trajectories_from_source(
        rollout_id,
        source,
        model=_text(verified, "model") or "",
        verified_response=verified,
        explicit_terminal_call_id=_text(result, "_ng_terminal_model_call_id"),
        declared_response_id=_text(result, "terminal_response_id"),
        rows=rows,
    )


def _text(body: Mapping[str, Any] | None, name: str) -> str | None:
    value = None if body is None else body.get(name)
    return None if value is None or value == "" else str(value)


def _mask_rows(build: Mapping[str, Any]) -> None:
    """Mask the rows of a record that is no sample, whatever its tokens prove: its reward is no measurement."""
    for row in build.get("training_rows", ()):
        row["mask_sample"] = True
        row["reasons"] = [ALREADY_MASKED, *row["reasons"]]


def _put_into(result: MutableMapping[str, Any], build: Mapping[str, Any]) -> None:
    rebuilt = build["rebuilt_response"]
    if rebuilt is not None:
        response = result.get("response")
        if isinstance(response, MutableMapping):
            response["output"] = rebuilt["output"]
        else:
            result["response"] = rebuilt
    if "training_rows" in build:
        result[TRAINING_ROWS_FIELD] = build["training_rows"]
    result[TOKEN_METRICS_FIELD] = dict(build["metrics"])
    if "error" in build:
        result[TOKEN_METRICS_FIELD]["error"] = build["error"]
    if build["mask_sample"]:
        result["mask_sample"] = True
        _log.warning("%s: masked: %s", build["rollout_id"], build.get("error") or ", ".join(build["mask_reasons"]))


def _refuse(
    result: MutableMapping[str, Any], reason: str, problem: str, rollout_id: str | None = None
) -> dict[str, Any]:
    """Mask a record whose capture cannot even be looked at."""
    metrics = {"n_calls": 0, "error": problem}
    result["mask_sample"] = True
    result[TOKEN_METRICS_FIELD] = dict(metrics)
    build = {
        "rebuilt_response": None,
        "mask_sample": True,
        "mask_reasons": [reason],
        "error": problem,
        "metrics": metrics,
    }
    _log.warning("masked: %s", problem)
    return build if rollout_id is None else {"rollout_id": rollout_id, **build}
