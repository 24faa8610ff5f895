"""Which names of benchmarks can be folders of a job, on any file system that a cluster may share (D135)."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["JOB_RECORD", "MAX_NAME_CHARS", "RESOLVED_CONFIG", "name_problem", "same_in_any_case"]

JOB_RECORD = "gym-job.json"
RESOLVED_CONFIG = "resolved-config.yaml"
MAX_NAME_CHARS = 200
"""A file name may have 255 bytes; what is made of a benchmark's name, such as the id of its job, has more than it."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def name_problem(name: str) -> str:
    """Return why a benchmark cannot be called so, "" when it can."""
    if not _NAME.fullmatch(name):
        return "cannot be the name of a benchmark"
    if name in (".", ".."):
        return "is no name for a folder"
    if name.lower() in (JOB_RECORD, RESOLVED_CONFIG):
        return "is the name of one of the job's own files"
    return f"has more than {MAX_NAME_CHARS} characters" if len(name) > MAX_NAME_CHARS else ""


def same_in_any_case(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return each name that an earlier one equals but for case, with that one."""
    first: dict[str, str] = {}
    found = []
    for name in names:
        other = first.setdefault(name.lower(), name)
        if other != name:
            found.append((name, other))
    return found
