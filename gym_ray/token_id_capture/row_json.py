"""A training row as a JSON object, as it is written into records and shown by commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gym_ray.token_id_capture.rows import TrainingRow

__all__ = ["row_as_json"]


def row_as_json(row: TrainingRow) -> dict[str, Any]:
    """Return the members of a row, its arrays as lists.

    ``token_ids`` and ``loss_mask`` (0 or 1) have one entry a token; ``policy_log_probs`` has one for each token of the
    spans whose ``kind`` is ``policy``, in their order.
    """
    return {
        "rollout_id": row.rollout_id,
        "chain_id": row.chain_id,
        "mask_sample": row.mask_sample,
        "reasons": list(row.reasons),
        "token_ids": row.token_ids.tolist(),
        "loss_mask": row.loss_mask().astype(int).tolist(),
        "policy_log_probs": row.policy_log_probs.tolist(),
        "spans": [asdict(span) for span in row.spans],
        "weight_spans": [asdict(span) for span in row.weight_spans],
        "shared_prefix": row.shared_prefix,
        "shared_with": row.shared_with,
        "constrained_calls": list(row.constrained_calls),
    }
