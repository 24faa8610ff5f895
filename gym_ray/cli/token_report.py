"""What a directory of token captures holds about one rollout, built as it would be delivered, and as JSON.

Reads only: nothing is frozen, locked for writing or created, so that a rollout can be looked at while it runs.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.cli.name_lists import some_of
from gym_ray.errors import CaptureError
from gym_ray.token_id_capture.assembly import AssembledRollout, Ending, assemble
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.row_json import row_as_json
from gym_ray.token_id_capture.rows import TrainingRow
from gym_ray.token_id_capture.store import TokenCaptureStore

__all__ = ["RolloutTokens", "print_json", "read_tokens"]

_MODEL_CALLS = "*.capture.jsonl"
_LEDGERS = "*.lineage.*"


@dataclass(frozen=True, slots=True)
class RolloutTokens:
    """One rollout's token capture.

    Attributes:
        directory: Where it was read.
        rollout_id: The rollout.
        records: Its readable records, one a call.
        assembled: What they were built into, with the verdict.
        rows: The main chain and all others.
        is_frozen: Whether the rollout takes no more calls.
    """

    directory: Path
    rollout_id: str
    records: tuple[PackedEntry, ...]
    assembled: AssembledRollout
    rows: tuple[TrainingRow, ...]
    is_frozen: bool


def read_tokens(directory: Path, rollout_id: str, terminal_call_id: str | None = None) -> RolloutTokens:
    """Read a rollout's token files and build them.

    Args:
        directory: Where they are.
        rollout_id: The rollout.
        terminal_call_id: The call that ended it, where that is known.

    Raises:
        CaptureError: There is no such directory, rollout or call, or a file cannot be read; says what there is.
        RolloutIdError: The id cannot be one.
    """
    if not directory.is_dir():
        raise CaptureError(f"{directory}: not a directory; name the token_id_capture.dir of a run")
    store = TokenCaptureStore(directory)
    records, problems = store.read_packed(rollout_id)
    stage = store.stage(rollout_id)
    if stage == "retired":
        remedy = "they are in the rollout's record, in response.output"
        raise CaptureError(f"{directory}: the tokens of rollout {rollout_id} were handed over and removed; {remedy}")
    if stage == "unknown":
        raise CaptureError(_unknown(store, rollout_id))
    if terminal_call_id is not None and all(record.model_call_id != terminal_call_id for record in records):
        known = some_of(record.model_call_id for record in records)
        raise CaptureError(f"{directory}: rollout {rollout_id} has no call {terminal_call_id!r}; there are {known}")
    ending = Ending(explicit_terminal_call_id=terminal_call_id)
    assembled = assemble(rollout_id, records, problems=problems, ending=ending)
    rows = tuple(assembled.rows(branches=True))
    return RolloutTokens(directory, rollout_id, tuple(records), assembled, rows, stage == "frozen")


def print_json(report: RolloutTokens) -> None:
    """Print one JSON document: verdict, metrics, problems, calls, and rows with all their tokens."""
    assembled = report.assembled
    document = {
        "directory": str(report.directory),
        "rollout_id": report.rollout_id,
        "frozen": report.is_frozen,
        "mask_sample": assembled.mask_sample,
        "reasons": assembled.reasons,
        "error": assembled.error or None,
        "problems": [asdict(problem) for problem in assembled.problems],
        "metrics": assembled.metrics,
        "quarantined": assembled.output.quarantined if assembled.output else [],
        "doubts": assembled.output.doubts if assembled.output else {},
        "calls": [_call(record) for record in report.records],
        "rows": [row_as_json(row) for row in report.rows],
    }
    sys.stdout.buffer.write(exact_json.dumps(document) + b"\n")
    sys.stdout.buffer.flush()


def _call(record: PackedEntry) -> dict[str, Any]:
    extras = record.extras
    return {
        "model_call_id": record.model_call_id,
        "parent_call_id": record.parent_call_id,
        "parent_resolution": record.parent_resolution,
        "parent_resolution_reason": record.parent_resolution_reason,
        "model": record.model,
        "response_id": record.response_id,
        "created_at": record.created_at,
        "prompt_is_delta": record.prompt_is_delta,
        "stored_prompt_tokens": record.prompt_token_ids.size,
        "generated_tokens": record.generation_token_ids.size,
        "cum_len": record.cum_len,
        "digest": record.digest,
        "prefix_requested": record.prefix_requested,
        "prefix_supplied": record.prefix_supplied,
        "gym_ray": extras.to_json(),
    }


def _unknown(store: TokenCaptureStore, rollout_id: str) -> str:
    directory, known = store.root, store.rollout_ids()
    message = f"{directory}: no token capture of rollout {rollout_id}"
    if known:
        near = sorted(known, key=lambda name: (not name.startswith(rollout_id), len(name), name))
        return f"{message}; there are {some_of(near)}"
    if any(directory.glob(_MODEL_CALLS)):
        return f"{message}; it holds model calls alone, which `gym-ray captures show` shows"
    if any(directory.glob(_LEDGERS)):
        return (
            f"{message}; it is the ledger of a run whose inference workers keep the tokens: `gym-ray staging manifest "
            f"{directory} {rollout_id}` shows its calls, and `gym-ray staging show WHERE KEY` the tokens of one"
        )
    return f"{message}, nor of any other; name the token_id_capture.dir of a run that captures tokens"
