"""Processor time of a process and all of its descendants, by what they do, as the kernel counts it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Used", "cpu_by_process", "spent"]

Used = Mapping[int, tuple[str, float]]
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_by_process(root: int) -> Used:
    """Return for ``root`` and every living descendant what it is called and its seconds of processor time, by pid.

    Actors are called by their class; other processes by their program.
    """
    children: dict[int, list[int]] = {}
    found: dict[int, tuple[str, float]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            before, _, after = (entry / "stat").read_text().rpartition(") ")
            title = (entry / "cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        fields, pid = after.split(), int(entry.name)
        children.setdefault(int(fields[1]), []).append(pid)
        name = title.split(".")[0] if title.startswith("ray::") else before.partition("(")[2]
        found[pid] = (name, (int(fields[11]) + int(fields[12])) / _TICKS)
    wanted, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        if pid in found:
            wanted[pid] = found[pid]
        waiting.extend(children.get(pid, ()))
    return wanted


def spent(before: Used, after: Used) -> dict[str, float]:
    """Return the seconds that were used between two looks, by name; what ended in between is not counted."""
    found: dict[str, float] = {}
    for pid, (name, seconds) in after.items():
        found[name] = found.get(name, 0.0) + seconds - (before[pid][1] if pid in before else 0.0)
    return found
