"""The durable half of the ledger: a 64-byte frame says that an attempt started, before anybody may run it.

Started and cancelled frames have no place in a file; their digest is that of the rollout id, so that a reader can tell
that rows and frames belong together.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from gym_ray.rollouts.run_files.frame_log import FrameLog
from gym_ray.rollouts.run_files.frames import Frame, FrameKind
from gym_ray.storage.calls import FileCalls

__all__ = ["LedgerLog", "invalid_row_id", "rollout_digest"]


def rollout_digest(rollout_id: str) -> bytes:
    """Return the 16 bytes that stand for a rollout id in a frame."""
    return hashlib.blake2b(rollout_id.encode("utf-8"), digest_size=16).digest()


def invalid_row_id(ordinal: int, attempt: int) -> str:
    """Return the rollout id of an attempt at a row that nobody can read: it names the row by its place alone."""
    return f"invalid-row-{ordinal}" + (f"-a{attempt}" if attempt else "")


class LedgerLog(FrameLog):
    """Appends frames to a run's ledger; see :class:`~gym_ray.rollouts.run_files.frame_log.FrameLog`."""

    def __init__(self, path: Path, *, calls: FileCalls | None = None) -> None:
        super().__init__(path, "ledger", calls=calls)

    async def append(self, kind: FrameKind, ordinal: int, attempt: int, rollout_id: str) -> None:
        """Append one frame; it is durable when this returns.

        Raises:
            StorageError: It could not be made durable; the attempt must not be dispatched.
        """
        await self.append_frame(Frame(kind, ordinal, attempt, rollout_digest(rollout_id), time.time_ns() // 1000))
