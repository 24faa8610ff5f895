"""The name of a task in a trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["task_id_of"]

_NAMES = ("task_id", "problem_id", "instance_id")


def task_id_of(row: Mapping[str, Any]) -> str:
    """Return the text of the first id that the row's data set gave it, else that of its task index (D84)."""
    named = (row[name] for name in _NAMES if row.get(name) is not None)
    return str(next(named, row.get("_ng_task_index")))
