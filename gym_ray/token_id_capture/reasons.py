"""Every code that says why tokens cannot be trained on, in one place: the words that users count, search and read.

They stand in marks and capture problems, in doubts about calls, in ``mask_reasons`` of a record and in ``reasons`` of a
row. Each constant has the name of its value. Records outlive versions of this package, so a value never changes.
"""

from __future__ import annotations

from typing import Final

# Of one call, said by its engine's adapter: the call was answered, and its tokens cannot be used.

ENGINE_REPORTS_NO_TOKENS: Final = "engine_reports_no_tokens"
"""The answer holds no token ids at all, or no engine made it."""
IDS_MISSING: Final = "ids_missing"
"""Not every generated token has an id, or the answer broke off."""
PROMPT_IDS_MISSING: Final = "prompt_ids_missing"
"""The prompt's ids are not in the answer."""
LOG_PROB_MISSING: Final = "log_prob_missing"
"""A generated token has no log probability."""
NON_FINITE_LOG_PROB: Final = "non_finite_log_prob"
"""A log probability is NaN or infinite (W21)."""
USAGE_MISSING: Final = "usage_missing"
"""Nothing counts the tokens, so that a lost chunk would not show."""
USAGE_MISMATCH: Final = "usage_mismatch"
"""The engine counts other numbers of tokens than its answer holds."""
LENGTH_MISMATCH: Final = "length_mismatch"
"""Ids and log probabilities do not belong to each other one by one."""
SEVERAL_CHOICES: Final = "several_choices"
"""The answer has more than one choice, and a rollout goes on with one."""
SEVERAL_CARRIERS: Final = "several_carriers"
"""More than one part of the answer carries tokens, and they differ or nothing tells which are the call's."""
MALFORMED_TOKENS: Final = "malformed_tokens"
"""The tokens, or the answer around them, cannot be read."""
PREFIX_NOT_SUPPLIED: Final = "prefix_not_supplied"
"""The prompt does not begin with the parent's tokens, which went in (W35)."""

# Of one call, said by capture.

CAPTURE_FAILED: Final = "capture_failed"
"""The call was lost to a fault in capture, in its sink, or in the shape of its answer."""
UNTRAINABLE: Final = "untrainable"
"""A sink was told that the call is untrainable, and not why."""

# Of a required prefix whose proof was asked for (B95).

PREFIX_REMOVED: Final = "prefix_removed"
"""The prefix did not stay in the request."""
PREFIX_UNPROVEN: Final = "prefix_unproven"
"""The answer does not hold the ids of the prompt."""
PREFIX_NOT_APPLIED: Final = "prefix_not_applied"
"""The prompt begins with other tokens."""

# Of a rollout's stored evidence (W39, B150).

MARKED_INCOMPLETE: Final = "marked_incomplete"
"""Somebody marked the rollout, without a reason of its own."""
MARK_PENDING: Final = "mark_pending"
"""A server lost tokens of the rollout, and its mark was not durable yet when the rollout was read."""
CALL_WITHOUT_RECORD: Final = "call_without_record"
"""A call was begun and has no record: it may have generated tokens that are lost (B55)."""
DAMAGED_LINE: Final = "damaged_line"
"""A line of the record file is not JSON, or no record of a call."""
INVALID_RECORD: Final = "invalid_record"
"""A record contradicts itself, or belongs to another rollout."""
CONFLICTING_RECORD: Final = "conflicting_record"
"""A call has two records that differ."""
INDEXED_RECORD_MISSING: Final = "indexed_record_missing"
"""Another writer's index has a record that the record file has not."""
UNPACKABLE_RECORD: Final = "unpackable_record"
"""No array can hold a record's ids or log probabilities."""

# Of one call, said by the builder: why its record or its link to a parent does not count (B100-B105).

DUPLICATE_CALL_ID_CONFLICT: Final = "duplicate_call_id_conflict"
"""A second record of the call holds other tokens."""
RECORD_DIGEST_MISMATCH: Final = "record_digest_mismatch"
"""The record's tokens are not those that it claims."""
DELTA_CHAIN_UNRECONSTRUCTABLE: Final = "delta_chain_unreconstructable"
"""The record holds a delta, and its whole sequence cannot be rebuilt or is not the one that it claims."""
PARENT_UNRESOLVED: Final = "parent_unresolved"
"""No parent was proved when the call was made."""
PARENT_DIGEST_MISMATCH: Final = "parent_digest_mismatch"
"""The call's prompt does not begin with the tokens of its parent."""
PARENT_CALL_ID_MISSING: Final = "parent_call_id_missing"
"""The parent's record is missing, or generated nothing and has no proven parent itself."""
PARENT_CALL_ID_MISSING_RECOVERED: Final = "parent_call_id_missing_recovered"
"""The parent generated nothing, and the call before it is proved (W27): a note, and no reason to mask."""
MISSING_RESOLUTION: Final = "missing_resolution"
"""The record says nothing about a parent."""

# Of a whole rollout, or of one row (B119, B120).

CAPTURE_INCOMPLETE: Final = "capture_incomplete"
"""Evidence was lost, or may have been; the problems of the capture are named beside it."""
NO_TOKEN_RECORDS: Final = "no_token_records"  # noqa: S105 - a reason, not a secret
"""Nothing was recorded."""
FREEZE_FAILED: Final = "freeze_failed"
"""The capture could not be read."""
BUILD_FAILED: Final = "build_failed"
"""The records could not be built into chains."""
NOTHING_GENERATED: Final = "nothing_generated"
"""There is no generated token to learn from."""
UNRESOLVED_PARENT_CALLS: Final = "unresolved_parent_calls"
"""Calls are in doubt, and nothing tells that they do not matter."""
UNRESOLVED_RETRIES: Final = "unresolved_retries"
"""Calls were made again, and nothing tells which ones the agent went on with."""
UNRESOLVED_RETRY: Final = "unresolved_retry"
"""The same, of a row that holds one of these calls."""
SEVERAL_ROOTS: Final = "several_roots"
"""The rollout does not have one first call, and nothing tells which call ended it."""
SEVERAL_CHAINS: Final = "several_chains"
"""The rollout does not have one chain, and nothing tells which call ended it."""
TERMINAL_BROKEN: Final = "terminal_broken"
"""The call that ended the rollout is known, and the way to it is in doubt."""
TERMINAL_NOT_CAPTURED: Final = "terminal_not_captured"
"""The call that ended the rollout is known, and is not among those that can be used."""
TERMINAL_NOT_ATTRIBUTED: Final = "terminal_not_attributed"
"""The agent named the response that ended the rollout, and no single call is behind it."""

# Of a record whose capture was not looked at (B121, B122).

MALFORMED_ROLLOUT_ID: Final = "malformed_rollout_id"
"""The record's rollout id is none."""
NO_CAPTURE_KEY: Final = "no_capture_key"
"""Nothing in the record says which capture is its own."""
FINALISATION_FAILED: Final = "finalisation_failed"
"""Putting the tokens into the record failed."""
ALREADY_MASKED: Final = "already_masked"
"""An earlier finalisation masked the record."""
