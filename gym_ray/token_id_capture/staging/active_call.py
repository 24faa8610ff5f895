"""One admitted call between its admission and its only completion (C101-C108)."""

from __future__ import annotations

import threading

import numpy as np

from gym_ray.errors import CaptureError
from gym_ray.token_id_capture.staging.columns import Column, id_column
from gym_ray.token_id_capture.staging.records import CaptureAdmission
from gym_ray.token_id_capture.token_arrays import TokenArray, TokenIds

__all__ = ["ActiveCall", "resolved_prefix"]


class ActiveCall:
    """A call that was admitted, and completes once.

    Args:
        admission: What the model server granted.
        weight_version: Which weights it runs on; stamped here, whatever is loaded later (C104).
        prefix_token_ids: The tokens that its prompt must begin with.
    """

    __slots__ = ("_completed", "_lock", "admission", "prefix_token_ids", "weight_version")

    def __init__(self, admission: CaptureAdmission, weight_version: int, prefix_token_ids: Column[int]) -> None:
        self.admission, self.weight_version, self.prefix_token_ids = admission, weight_version, prefix_token_ids
        self._completed = False
        self._lock = threading.Lock()

    @property
    def rollout_id(self) -> str:
        """The rollout."""
        return self.admission.rollout_id

    @property
    def model_call_id(self) -> str:
        """The call."""
        return self.admission.model_call_id

    @property
    def prefix(self) -> TokenArray:
        """The tokens that its prompt must begin with, read-only."""
        return self.prefix_token_ids.array

    @property
    def completed(self) -> bool:
        """Whether a completion has begun; never becomes false again (C105)."""
        return self._completed

    def claim(self) -> None:
        """Begin the only completion; of several threads that ask, one gets it (C107).

        Raises:
            CaptureError: A completion has begun before.
        """
        with self._lock:
            taken, self._completed = self._completed, True
        if taken:
            raise CaptureError(f"rollout {self.rollout_id}: call {self.model_call_id} was completed before")


def resolved_prefix(admission: CaptureAdmission, given: TokenIds | Column[int] | None) -> Column[int]:
    """Return the tokens that a call's prompt must begin with (C102, C103).

    Args:
        admission: What the model server granted.
        given: The prefix as the worker resolved it: a list, an array, or None where the admission holds it.

    Raises:
        CaptureError: There is none, or the one given cannot be that of the admission.
    """
    inline = admission.required_prefix_token_ids
    if given is None:
        if admission.mode == "token_in" and not len(inline):
            raise CaptureError(f"{_named(admission)}: the prefix behind its staging_chain was not given")
        return inline
    prefix = _checked(admission, given)
    if admission.mode == "text" and len(prefix):
        raise CaptureError(f"{_named(admission)}: a call in text mode has no prefix, and {len(prefix)} ids were given")
    if len(prefix) != admission.prev_len:
        raise CaptureError(f"{_named(admission)}: its prefix has {admission.prev_len} ids, not {len(prefix)}")
    if len(inline) and inline != prefix:
        raise CaptureError(f"{_named(admission)}: the prefix given is not the one that it was admitted with")
    return prefix


def _checked(admission: CaptureAdmission, given: TokenIds | Column[int]) -> Column[int]:
    if isinstance(given, tuple) or (isinstance(given, np.ndarray) and given.dtype.kind not in "iu"):
        what = f"an array of {given.dtype}" if isinstance(given, np.ndarray) else "a tuple"
        raise CaptureError(f"{_named(admission)}: a prefix is a list or an array of integers, not {what}")
    try:
        return id_column(given)
    except ValueError as error:
        raise CaptureError(f"{_named(admission)}: the prefix given is none: {error}") from error


def _named(admission: CaptureAdmission) -> str:
    return f"rollout {admission.rollout_id}: call {admission.model_call_id}"
