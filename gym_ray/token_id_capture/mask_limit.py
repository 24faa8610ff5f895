"""The share of masked rollouts at which a run gives up (B125, W38).

A run that trains on almost nothing should end and say why. It must never end before the rollout that tipped the
balance is on the disk: call ``note`` after its record is durable.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable

from gym_ray.errors import MaskLimitExceededError

__all__ = ["MaskLimit"]


class MaskLimit:
    """Counts masked rollouts, of the whole run and of its last ones, and ends the run when they are too many (B125).

    Not safe for several threads: one run loop owns it.

    Args:
        max_mask_fraction: Largest share of masked rollouts, 0 to 1; None counts and never ends the run.
        min_samples: Finalised rollouts before the share means anything, 1 or more.
        window: Also look at the last ``window`` rollouts alone, once there are as many; at least ``min_samples``.
            A collapse late in a long run shows there first (W38). None looks at the whole run only.

    Raises:
        ValueError: A number is out of its range (B130); the message names it.
    """

    def __init__(self, max_mask_fraction: float | None, min_samples: int = 50, window: int | None = None) -> None:
        if max_mask_fraction is not None and not 0 <= max_mask_fraction <= 1:
            raise ValueError(f"max_mask_fraction: {max_mask_fraction!r} is not a share; use 0 to 1")
        if min_samples < 1:
            raise ValueError(f"mask_fraction_min_samples: {min_samples!r} is too small; use 1 or more")
        if window is not None and window < min_samples:
            raise ValueError(
                f"mask_fraction_window: {window!r} is smaller than mask_fraction_min_samples ({min_samples}); "
                "use at least as many"
            )
        self._limit = math.inf if max_mask_fraction is None else max_mask_fraction
        self._min_samples, self._window = min_samples, window
        self._finalised = self._masked = 0
        self._reasons: Counter[str] = Counter()
        self._last: deque[tuple[bool, tuple[str, ...]]] = deque(maxlen=window or 0)

    @property
    def finalised(self) -> int:
        """Rollouts counted so far."""
        return self._finalised

    @property
    def masked(self) -> int:
        """Masked rollouts among them."""
        return self._masked

    def note(self, masked: bool, reasons: Iterable[str] = ()) -> None:
        """Count one finalised rollout. Call it after the rollout's record is durable (W38).

        Args:
            masked: Whether its training data is masked.
            reasons: Codes of why (``mask_reasons`` of its build); each counts once. Ignored for an unmasked rollout.

        Raises:
            MaskLimitExceededError: The share of masked rollouts is strictly greater than allowed, over the whole run
                or over the last ``window``. This rollout has been counted.
        """
        named = tuple(dict.fromkeys(reasons)) if masked else ()
        self._finalised += 1
        self._masked += masked
        self._reasons.update(named)
        self._last.append((masked, named))
        if self._finalised < self._min_samples:
            return
        if self._masked / self._finalised > self._limit:
            raise MaskLimitExceededError(self._masked, self._finalised, self._limit, self._reasons)
        if self._window is not None and len(self._last) == self._window:
            self._check_window(self._window)

    def _check_window(self, window: int) -> None:
        masked = sum(1 for is_masked, _ in self._last if is_masked)
        if masked / window > self._limit:
            reasons = Counter(reason for _, named in self._last for reason in named)
            raise MaskLimitExceededError(masked, window, self._limit, reasons, window)
