"""What a model server needs when its inference workers keep the tokens: the ledger, and who the workers are (C240)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gym_ray.token_id_capture.staging.ledger.protocol import CaptureLedger

__all__ = ["LEDGER_METHODS", "ExternalStaging", "WorkerBackend"]

WorkerBackend: TypeAlias = Literal["vllm_worker", "megatron_worker"]
"""How a worker is told of an admission (C244, C245)."""

LEDGER_METHODS = (
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


@dataclass(frozen=True, slots=True)
class ExternalStaging:
    """The parts of external staging in one process; who built them closes them.

    Attributes:
        ledger: Keeps a token-free row of each committed call.
        backend: What the workers are.
        control_token: Bearer of the control routes; never shown (C220).
    """

    ledger: CaptureLedger
    backend: WorkerBackend
    control_token: str = field(repr=False)

    async def aclose(self) -> None:
        """Close the ledger; failures that it could not keep until now are tried once more.

        Raises:
            CaptureError: The ledger did not end well.
        """
        await self.ledger.close()
