"""Tables of training rows for a training loop: from a fresh build, or once more from the durable record."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from gym_ray.errors import UnusableTokensError
from gym_ray.token_id_capture.delivery import TRAINING_ROWS_FIELD
from gym_ray.token_id_capture.token_table import token_table

__all__ = ["built_table", "recorded_table"]

_log = logging.getLogger(__name__)


def built_table(rollout_id: str, build: Mapping[str, Any] | None) -> pa.Table | None:
    """Return the rows of a build as a table without rewards; None when there are none, or none that a table can hold.

    The record is durable by now, and holds the rows whatever becomes of the table.
    """
    rows = None if build is None else build.get("training_rows")
    if not rows:
        return None
    try:
        return token_table(rows)
    except UnusableTokensError as error:
        _log.error("%s: its training rows stand in its record only: %s", rollout_id, error)
        return None


def recorded_table(record: Mapping[str, Any]) -> pa.Table | None:
    """Return the training rows of a record as a table without rewards, None when it has none.

    Raises:
        UnusableTokensError: No table can hold them.
    """
    rows = record.get(TRAINING_ROWS_FIELD)
    return token_table(rows) if isinstance(rows, list) and rows else None
