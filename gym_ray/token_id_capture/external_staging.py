"""What a model server needs when its inference workers keep the tokens: the ledger, and who the workers are (C240)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from gym_ray.token_id_capture.staging.ledger.protocol import CaptureLedger

__all__ = [
    "COMMITTED",
    "LEDGER_METHODS",
    "NOT_ADMITTED",
    "ExternalStaging",
    "HostedWorker",
    "StagedCallCounts",
    "WorkerBackend",
]

WorkerBackend: TypeAlias = Literal["vllm_worker", "megatron_worker"]
"""How a worker is told of an admission (C244, C245)."""

LEDGER_METHODS: Final = (
    "resolve",
    "record",
    "record_failure",
    "manifest",
    "has_rows",
    "retire",
    "delete",
    "is_process_shared",
    "evicts",
    "close",
)
"""What a ledger of the user's own must be able to do (C200)."""
COMMITTED: Final = "committed"
"""Outcome of a call whose row the ledger took; any other outcome is the reason why it has none.

The row of a rollout that was retired meanwhile was dropped, which the ledger logs.
"""
NOT_ADMITTED: Final = "not_admitted"
"""Mode of a call that was served as ordinary traffic, because its parent is not proved."""


class StagedCallCounts:
    """How the captured calls of one server ended, by mode and outcome (C348). Belongs to one event loop."""

    def __init__(self) -> None:
        self._ended: Counter[tuple[str, str]] = Counter()

    def ended(self, mode: str, outcome: str) -> None:
        """Count a call: ``text``, ``token_in`` or not admitted; committed, or the reason why not."""
        self._ended[mode, outcome] += 1

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return how many calls ended, by mode and outcome; a snapshot."""
        return MappingProxyType(dict(self._ended))


@dataclass(frozen=True, slots=True)
class HostedWorker:
    """The worker that a run hosts for one of its model servers.

    Attributes:
        url: Root URL.
        api_key: What it wants to be sent.
    """

    url: str
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ExternalStaging:
    """The parts of external staging in one process; who built them closes them.

    Attributes:
        ledger: Keeps a token-free row of each committed call.
        backend: What the workers are.
        control_token: Bearer of the control routes; never shown (C220).
        counts: How calls ended.
        worker: The worker, where the run hosts it: trainers reach it through its model server.
    """

    ledger: CaptureLedger
    backend: WorkerBackend
    control_token: str = field(repr=False)
    counts: StagedCallCounts = field(default_factory=StagedCallCounts)
    worker: HostedWorker | None = None

    async def aclose(self) -> None:
        """Close the ledger; failures that it could not keep until now are tried once more.

        Raises:
            CaptureError: The ledger did not end well.
        """
        await self.ledger.close()
