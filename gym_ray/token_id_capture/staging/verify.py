"""From a receipt and what storage holds to a training row, with every claim checked on the way (C150-C169).

Nothing is believed: neither the receipt, nor that storage gave back the calls that it was asked for, nor their values.
The first thing that is wrong ends it with a code that programs can count (C341). Extras are not read: what they must
hash to goes into the row. The work grows with the number of tokens and calls, and each hash is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gym_ray.errors import RebuildError, ReceiptVerificationError
from gym_ray.token_id_capture.staging.constants import (
    EXTRAS_DIGEST_VERSION,
    STAGING_DIGEST_VERSION,
    STAGING_SCHEMA_VERSION,
)
from gym_ray.token_id_capture.staging.ledger_records import CallRecord, RolloutReceipt
from gym_ray.token_id_capture.staging.linearized import (
    ExtrasCommitment,
    LinearizedRow,
    LinearizedRows,
    SkippedChain,
    WeightVersionSpan,
    linearize_chain,
)
from gym_ray.token_id_capture.staging.manifest_graph import call_chain, check_manifest_graph, secondary_leaves
from gym_ray.token_id_capture.staging.records import StagedCallBaseSnapshot, StagingRecord

__all__ = [
    "ExtrasCommitment",
    "LinearizedRow",
    "LinearizedRows",
    "RebuildError",
    "ReceiptVerificationError",
    "SkippedChain",
    "WeightVersionSpan",
    "linearize",
    "linearize_all",
    "verify_and_linearize",
]

_VERSIONS: Final = (
    ("schema_version", STAGING_SCHEMA_VERSION, "unsupported_schema"),
    ("digest_version", STAGING_DIGEST_VERSION, "unsupported_digest"),
    ("extras_digest_version", EXTRAS_DIGEST_VERSION, "unsupported_extras_digest"),
)
_SAME_IN_BOTH: Final = (
    "model_call_id",
    "parent_call_id",
    "mode",
    "prev_len",
    "delta_len",
    "cum_len",
    "weight_version",
    "digest",
    "extras_digest",
    "chain_hash",
    "cumulative_hash",
)


def verify_and_linearize(receipt: RolloutReceipt, snapshots: Sequence[StagedCallBaseSnapshot]) -> LinearizedRow:
    """Return the row of the chain that ends in the receipt's terminal call.

    Every call of the manifest is checked, also off that chain (C153). Only the chain's own hashes along the way are
    proved; a dead branch may have a wrong one (C154).

    Args:
        receipt: Which calls the rollout has, and which one ended it.
        snapshots: The calls as storage holds them, in the order of the manifest.

    Raises:
        TypeError: An argument is of another type, or what it holds.
        ReceiptVerificationError: Receipt, manifest and calls do not agree (C152); ``code`` says how.
        RebuildError: Verified calls do not make up the row; a kind of the above.
    """
    rows, calls = _verified(receipt, snapshots)
    return _row_of(receipt.rollout_id, _terminal(receipt, rows), rows, calls)


def linearize(
    rollout_id: str,
    snapshots: Sequence[StagedCallBaseSnapshot],
    manifest: Sequence[CallRecord],
    *,
    terminal_hint: str | None,
) -> LinearizedRow:
    """Return the row that ends in the call ``terminal_hint``, without a receipt of somebody else (C169).

    Raises:
        ReceiptVerificationError: There is no hint (``missing_terminal``), or as :func:`verify_and_linearize`.
        ValidationError: The hint is not in the manifest, or the manifest has a call twice; a ValueError.
    """
    if terminal_hint is None:
        raise ReceiptVerificationError("missing_terminal", f"nothing tells which call ended rollout {rollout_id!r}")
    receipt = RolloutReceipt(
        rollout_id=rollout_id,
        manifest=list(manifest),
        terminal_model_call_id=terminal_hint,
        terminal_selection="declared",
    )
    return verify_and_linearize(receipt, snapshots)


def linearize_all(receipt: RolloutReceipt, snapshots: Sequence[StagedCallBaseSnapshot]) -> LinearizedRows:
    """Return the row of the terminal call, and one more for each other root whose chain has one end (C351).

    A secondary chain that cannot be proved, or has several ends or one call alone, is skipped and named; the others
    are not touched by it. What is wrong with the receipt, or with a call as such, fails the rollout as ever (C153).

    Raises:
        TypeError: As :func:`verify_and_linearize`.
        ReceiptVerificationError: As :func:`verify_and_linearize`, for the terminal's row.
    """
    rows, calls = _verified(receipt, snapshots)
    main = _row_of(receipt.rollout_id, _terminal(receipt, rows), rows, calls)
    secondary: list[LinearizedRow] = []
    skipped: list[SkippedChain] = []
    for root, leaf, code in secondary_leaves(receipt.manifest, main.model_call_ids[0]):
        if leaf is None:
            skipped.append(SkippedChain(root, code))
            continue
        try:
            secondary.append(_row_of(receipt.rollout_id, leaf, rows, calls))
        except RebuildError as error:
            skipped.append(SkippedChain(root, error.code, error.detail))
    return LinearizedRows(main, tuple(secondary), tuple(skipped))


def _row_of(
    rollout_id: str, leaf: str, rows: dict[str, CallRecord], calls: dict[str, StagedCallBaseSnapshot]
) -> LinearizedRow:
    return linearize_chain(rollout_id, [calls[call_id] for call_id in call_chain(leaf, rows)])


def _terminal(receipt: RolloutReceipt, rows: dict[str, CallRecord]) -> str:
    terminal = receipt.terminal_model_call_id
    if terminal is None or terminal not in rows:
        raise RebuildError("missing_terminal", f"the receipt names {terminal!r} as the call that ended the rollout")
    return terminal


def _verified(
    receipt: RolloutReceipt, snapshots: Sequence[StagedCallBaseSnapshot]
) -> tuple[dict[str, CallRecord], dict[str, StagedCallBaseSnapshot]]:
    """Check receipt, manifest and every call (steps 1 to 12 of C152), and return rows and calls by id."""
    if not isinstance(receipt, RolloutReceipt):
        raise TypeError(f"the receipt is a RolloutReceipt, not {type(receipt).__name__}")
    for snapshot in snapshots:
        _check_type(snapshot, StagedCallBaseSnapshot)
    _check_receipt(receipt)
    for row in receipt.manifest:
        _check_type(row, CallRecord)
    rows = _rows_by_id(receipt)
    if len(snapshots) != len(receipt.manifest):
        raise ReceiptVerificationError(
            "row_count_mismatch", f"{len(snapshots)} calls were read, the manifest has {len(receipt.manifest)}"
        )
    calls: dict[str, StagedCallBaseSnapshot] = {}
    for row, snapshot in zip(receipt.manifest, snapshots, strict=True):
        _check_place(row, snapshot, rows, calls)
        _check_claims(receipt, row, snapshot)
        _check_digest(snapshot)
        calls[snapshot.model_call_id] = snapshot
    check_manifest_graph(receipt.manifest)
    return rows, calls


def _check_type(value: object, wanted: type[StagingRecord]) -> None:
    """Refuse what is no such record, or one that was made past all validation and lacks members.

    Raises:
        TypeError: It is.
    """
    if not isinstance(value, wanted):
        raise TypeError(f"a {wanted.__name__} is needed, not {type(value).__name__}")
    missing = wanted.model_fields.keys() - value.__dict__.keys()
    if missing:
        raise TypeError(f"a {wanted.__name__} lacks {', '.join(sorted(missing))}")


def _check_receipt(receipt: RolloutReceipt) -> None:
    for name, supported, code in _VERSIONS:
        version = getattr(receipt, name)
        if type(version) is not int or version != supported:
            raise ReceiptVerificationError(code, f"the receipt has {name} {version!r}, known is {supported}")
    if receipt.failure_reason is not None:
        raise ReceiptVerificationError("rollout_failed", receipt.failure_reason)
    if receipt.capture_poisoned is not False:
        raise ReceiptVerificationError("capture_poisoned", "calls of the rollout were lost")
    if not receipt.manifest:
        raise ReceiptVerificationError("empty_manifest", f"rollout {receipt.rollout_id!r} has no calls")


def _rows_by_id(receipt: RolloutReceipt) -> dict[str, CallRecord]:
    rows: dict[str, CallRecord] = {}
    keys: set[str] = set()
    for row in receipt.manifest:
        if row.model_call_id in rows:
            raise ReceiptVerificationError("duplicate_manifest_row", f"call {row.model_call_id!r}")
        if row.staging_key in keys:
            raise ReceiptVerificationError("duplicate_staging_key", f"call {row.model_call_id!r}: {row.staging_key!r}")
        rows[row.model_call_id] = row
        keys.add(row.staging_key)
    return rows


def _check_place(
    row: CallRecord,
    snapshot: StagedCallBaseSnapshot,
    rows: dict[str, CallRecord],
    calls: dict[str, StagedCallBaseSnapshot],
) -> None:
    found = snapshot.model_call_id
    if found in calls:
        raise ReceiptVerificationError("duplicate_snapshot", f"call {found!r} was read twice")
    if found not in rows:
        raise ReceiptVerificationError("snapshot_identity_mismatch", f"call {found!r} is not in the manifest")
    if found != row.model_call_id:
        raise ReceiptVerificationError(
            "snapshot_order_mismatch", f"call {found!r} stands where the manifest has {row.model_call_id!r}"
        )


def _check_claims(receipt: RolloutReceipt, row: CallRecord, snapshot: StagedCallBaseSnapshot) -> None:
    for code, name, wanted, found in _claims(receipt, row, snapshot):
        if found != wanted:
            raise ReceiptVerificationError(
                code, f"call {snapshot.model_call_id!r} has {name} {found!r}, expected is {wanted!r}"
            )


def _claims(
    receipt: RolloutReceipt, row: CallRecord, snapshot: StagedCallBaseSnapshot
) -> Iterator[tuple[str, str, object, object]]:
    """Yield code, field, what it should be and what it is, in the order of steps 8 to 10 of C152."""
    yield "wrong_rollout", "rollout_id", receipt.rollout_id, snapshot.rollout_id
    for name in _SAME_IN_BOTH:
        yield f"wrong_{name}", name, getattr(row, name), getattr(snapshot, name)
    for name, _, _ in _VERSIONS:
        yield f"wrong_{name}", name, getattr(receipt, name), getattr(row, name)
        yield f"wrong_{name}", name, getattr(receipt, name), getattr(snapshot, name)


def _check_digest(snapshot: StagedCallBaseSnapshot) -> None:
    try:
        computed = snapshot.compute_digest()
    except (TypeError, ValueError, OverflowError) as error:
        raise ReceiptVerificationError("invalid_snapshot", f"call {snapshot.model_call_id!r}: {error}") from error
    if computed != snapshot.digest:
        raise ReceiptVerificationError(
            "corrupt_digest",
            f"call {snapshot.model_call_id!r} was staged as {snapshot.digest}, what was read gives {computed}",
        )
