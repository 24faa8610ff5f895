"""Worker-owned staging: tokens made durable by the process that generated them, before its answer leaves (C).

The contract's names can be imported from here. Nothing here loads a file format, an HTTP library, torch or Ray (C18);
sinks and sources on Parquet are in :mod:`gym_ray.token_id_capture.staging.parquet`, by their own name.
"""

from __future__ import annotations

from gym_ray.errors import CaptureError, StreamingUnsupportedError
from gym_ray.token_id_capture.staging.active_call import ActiveCall
from gym_ray.token_id_capture.staging.async_capture import AsyncRolloutTokenCapture
from gym_ray.token_id_capture.staging.capture import (
    CaptureFailureHook,
    CaptureHost,
    RolloutTokenCapture,
    install_capture,
)
from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.committing import NotStagedError, checked_coordinates, ledger_commit
from gym_ray.token_id_capture.staging.constants import (
    EXTRAS_DIGEST_VERSION,
    INVALID_COMMIT_COORDS_REASON,
    LEDGER_ROW_MISSING_CHAIN_HASH_REASON,
    LEDGER_ROW_MISSING_RESPONSE_ID_REASON,
    NG_CAPTURE_FIELD,
    NG_COMMIT_COORDS_FIELD,
    NO_EXTRAS_DIGEST,
    POISON_REASONS,
    REQUIRED_PREFIX_FIELD,
    STAGING_DIGEST_VERSION,
    STAGING_SCHEMA_VERSION,
    TERMINAL_SELECTION_OUTCOMES,
    UNCOMMITTED_CALL_REASON,
    UNRESOLVED_PARENT_REASON,
    WORKER_CAPTURE_FAILED_REASON,
    WORKER_MISSING_COMMIT_COORDS_REASON,
)
from gym_ray.token_id_capture.staging.delta import PackedDelta, build_staging_delta, packed_delta
from gym_ray.token_id_capture.staging.digests import (
    CallHashes,
    compute_chain_hash,
    compute_extras_digest,
    compute_prefix_hash,
    compute_staging_digest,
    hash_call,
)
from gym_ray.token_id_capture.staging.ledger.admission import admit
from gym_ray.token_id_capture.staging.ledger.file_ledger import FileCaptureLedger
from gym_ray.token_id_capture.staging.ledger.memory_ledger import MemoryCaptureLedger
from gym_ray.token_id_capture.staging.ledger.protocol import CaptureLedger
from gym_ray.token_id_capture.staging.ledger.retirement import distinct_rollout_ids
from gym_ray.token_id_capture.staging.ledger_records import (
    CallRecord,
    CaptureLedgerCommit,
    ManifestFailure,
    RolloutManifest,
    RolloutReceipt,
    RolloutRemoval,
)
from gym_ray.token_id_capture.staging.memory_sink import MemoryStaging
from gym_ray.token_id_capture.staging.protocols import (
    CaptureAdapter,
    PrefixSource,
    StagingSink,
    StagingSource,
    WeightVersionProvider,
)
from gym_ray.token_id_capture.staging.receipts import build_receipt, primary_reason
from gym_ray.token_id_capture.staging.records import (
    CaptureAdmission,
    CommitCoords,
    StagedCallBaseSnapshot,
    StagedCallRecord,
    StagedCallSnapshot,
    StageResult,
    default_staging_key,
)
from gym_ray.token_id_capture.staging.selection import SelectedTerminal, select_terminal_call
from gym_ray.token_id_capture.staging.verify import (
    ExtrasCommitment,
    LinearizedRow,
    LinearizedRows,
    RebuildError,
    ReceiptVerificationError,
    SkippedChain,
    WeightVersionSpan,
    linearize,
    linearize_all,
    verify_and_linearize,
)
from gym_ray.token_id_capture.terminal import TerminalAttribution, resolve_terminal

__all__ = [
    "EXTRAS_DIGEST_VERSION",
    "INVALID_COMMIT_COORDS_REASON",
    "LEDGER_ROW_MISSING_CHAIN_HASH_REASON",
    "LEDGER_ROW_MISSING_RESPONSE_ID_REASON",
    "NG_CAPTURE_FIELD",
    "NG_COMMIT_COORDS_FIELD",
    "NO_EXTRAS_DIGEST",
    "POISON_REASONS",
    "REQUIRED_PREFIX_FIELD",
    "STAGING_DIGEST_VERSION",
    "STAGING_SCHEMA_VERSION",
    "TERMINAL_SELECTION_OUTCOMES",
    "UNCOMMITTED_CALL_REASON",
    "UNRESOLVED_PARENT_REASON",
    "WORKER_CAPTURE_FAILED_REASON",
    "WORKER_MISSING_COMMIT_COORDS_REASON",
    "ActiveCall",
    "AsyncRolloutTokenCapture",
    "CallHashes",
    "CallRecord",
    "CaptureAdapter",
    "CaptureAdmission",
    "CaptureError",
    "CaptureFailureHook",
    "CaptureHost",
    "CaptureLedger",
    "CaptureLedgerCommit",
    "Column",
    "CommitCoords",
    "ExtrasCommitment",
    "FileCaptureLedger",
    "LinearizedRow",
    "LinearizedRows",
    "ManifestFailure",
    "MemoryCaptureLedger",
    "MemoryStaging",
    "NotStagedError",
    "PackedDelta",
    "PrefixSource",
    "RebuildError",
    "ReceiptVerificationError",
    "RolloutManifest",
    "RolloutReceipt",
    "RolloutRemoval",
    "RolloutTokenCapture",
    "SelectedTerminal",
    "SkippedChain",
    "StageResult",
    "StagedCallBaseSnapshot",
    "StagedCallRecord",
    "StagedCallSnapshot",
    "StagingSink",
    "StagingSource",
    "StreamingUnsupportedError",
    "TerminalAttribution",
    "WeightVersionProvider",
    "WeightVersionSpan",
    "admit",
    "build_receipt",
    "build_staging_delta",
    "checked_coordinates",
    "compute_chain_hash",
    "compute_extras_digest",
    "compute_prefix_hash",
    "compute_staging_digest",
    "default_staging_key",
    "distinct_rollout_ids",
    "hash_call",
    "install_capture",
    "ledger_commit",
    "linearize",
    "linearize_all",
    "packed_delta",
    "primary_reason",
    "resolve_terminal",
    "select_terminal_call",
    "verify_and_linearize",
]
