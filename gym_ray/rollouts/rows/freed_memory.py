"""Gives freed memory back to the system after a step that needed much of it for a moment."""

from __future__ import annotations

import ctypes

__all__ = ["give_memory_back"]


def give_memory_back() -> None:
    """Return what this process has freed to the system, where its C library can.

    Large arrays that grew leave holes in the heap of glibc, which it keeps for a process's whole life: tens of bytes
    for each row of a run that lasts days. Other C libraries give memory back by themselves or not at all.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
