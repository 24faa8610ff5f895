"""Which values of a staged call can stand together: its place in a chain, and its lengths (C40, C41, C60).

Records and digests ask the same questions, so that nothing is stored which cannot be hashed.
"""

from __future__ import annotations

__all__ = ["length_problem", "link_problem", "root_problem"]


def root_problem(parent_call_id: str | None, prev_len: int) -> str:
    """Say why parent and prefix length do not make a root or a child (C40); empty if they do."""
    if parent_call_id is None and prev_len:
        return f"a call without a parent has no prefix, but prev_len is {prev_len}"
    if parent_call_id is not None and not prev_len:
        return f"prev_len is 0, although the call continues {parent_call_id!r}"
    return ""


def link_problem(mode: object, parent_call_id: str | None, prev_len: int) -> str:
    """Say how mode, parent and prefix length contradict each other (C40); empty if they do not."""
    wanted = "text" if parent_call_id is None else "token_in"
    if mode != wanted:
        link = "without a parent" if parent_call_id is None else f"that continues {parent_call_id!r}"
        return f"mode of a call {link} is {wanted!r}, not {mode!r}"
    return root_problem(parent_call_id, prev_len)


def length_problem(prev_len: int, delta_len: int, cum_len: int, least: int = 1) -> str:
    """Say how the lengths of a call contradict each other (C41, C60); empty if they do not."""
    if delta_len < least:
        return f"delta_len is {delta_len}: a staged call has at least one token"
    if cum_len != prev_len + delta_len:
        return f"cum_len is {cum_len}, and prev_len + delta_len is {prev_len + delta_len}"
    return ""
