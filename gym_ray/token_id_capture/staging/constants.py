"""Versions, hash domains, field names and reasons of worker-owned staging: the words that two processes must share.

Records and reasons outlive versions of this package, so a value here never changes (C10-C17). The field names are those
of token capture, and are repeated here so that a worker imports one package.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from gym_ray.token_id_capture.records import (
    LEDGER_ROW_MISSING_CHAIN_HASH_REASON,
    LEDGER_ROW_MISSING_RESPONSE_ID_REASON,
    UNCOMMITTED_CALL_REASON,
    UNRESOLVED_PARENT_REASON,
)
from gym_ray.token_id_capture.sink import NG_CAPTURE_FIELD, NG_COMMIT_COORDS_FIELD

__all__ = [
    "CALL_DIGEST_DOMAIN",
    "CHAIN_HASH_DOMAIN",
    "EXTRAS_DIGEST_DOMAIN",
    "EXTRAS_DIGEST_VERSION",
    "INVALID_COMMIT_COORDS_REASON",
    "LEDGER_ROW_MISSING_CHAIN_HASH_REASON",
    "LEDGER_ROW_MISSING_RESPONSE_ID_REASON",
    "MAX_EXTRAS_DEPTH",
    "NG_CAPTURE_FIELD",
    "NG_COMMIT_COORDS_FIELD",
    "NO_EXTRAS_DIGEST",
    "POISON_REASONS",
    "PREFIX_HASH_DOMAIN",
    "REQUIRED_PREFIX_FIELD",
    "STAGING_DIGEST_VERSION",
    "STAGING_SCHEMA_VERSION",
    "TERMINAL_SELECTION_OUTCOMES",
    "UNCOMMITTED_CALL_REASON",
    "UNRESOLVED_PARENT_REASON",
    "WORKER_CAPTURE_FAILED_REASON",
    "WORKER_MISSING_COMMIT_COORDS_REASON",
    "CallMode",
    "Disposition",
    "TerminalSelection",
    "TerminalSelectionOutcome",
]

STAGING_SCHEMA_VERSION: Final = 2
"""Version of every record that crosses processes (C10)."""
STAGING_DIGEST_VERSION: Final = 2
"""Version of the digest of a staged call (C10)."""
EXTRAS_DIGEST_VERSION: Final = 1
"""Version of the digest of a call's extras (C10)."""

CALL_DIGEST_DOMAIN: Final = b"nemo-gym-staging-call-v2"
EXTRAS_DIGEST_DOMAIN: Final = b"nemo-gym-staging-extras-v1"
PREFIX_HASH_DOMAIN: Final = b"nemo-gym-staging-prefix-v2"
CHAIN_HASH_DOMAIN: Final = b"nemo-gym-staging-chain-v1"

NO_EXTRAS_DIGEST: Final = "a1edc33c107616cf344faf0103daa025cfb125f8e1c784ae5f6a49faf2b768b6"
"""Digest of a call without extras; that of empty extras is another one (C92)."""
MAX_EXTRAS_DEPTH: Final = 256
"""How many containers of extras may be nested in each other (C325)."""

REQUIRED_PREFIX_FIELD: Final = "required_prefix_token_ids"
"""Where a request to an engine holds the ids that its prompt must begin with (C14)."""

WORKER_MISSING_COMMIT_COORDS_REASON: Final = "worker_response_missing_commit_coordinates"
WORKER_CAPTURE_FAILED_REASON: Final = "worker_capture_failed"
INVALID_COMMIT_COORDS_REASON: Final = "invalid_worker_commit_coordinates"

POISON_REASONS: Final = frozenset(
    {
        UNRESOLVED_PARENT_REASON,
        WORKER_MISSING_COMMIT_COORDS_REASON,
        WORKER_CAPTURE_FAILED_REASON,
        INVALID_COMMIT_COORDS_REASON,
        UNCOMMITTED_CALL_REASON,
        LEDGER_ROW_MISSING_RESPONSE_ID_REASON,
        LEDGER_ROW_MISSING_CHAIN_HASH_REASON,
    }
)
"""Why a rollout cannot be trained on, as ledgers record it (C16). Readers accept other reasons too (C71)."""

CallMode: TypeAlias = Literal["text", "token_in"]
"""How a call went in: as text without a proven parent, or as the tokens of its parent and what follows (C30, C31)."""
Disposition: TypeAlias = Literal["staged", "capture_failed"]
TerminalSelection: TypeAlias = Literal["declared", "response_id", "content", "heuristic"]
TerminalSelectionOutcome: TypeAlias = Literal[
    "selected", "no_records", "duplicate_call_id", "orphaned_row", "no_root", "ambiguous_terminal"
]
TERMINAL_SELECTION_OUTCOMES: Final[tuple[TerminalSelectionOutcome, ...]] = get_args(TerminalSelectionOutcome)
"""How a terminal call is told without a witness (C17)."""
