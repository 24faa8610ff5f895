"""Classes that settings may name for token capture, over files: for tests of runs only."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot
from gym_ray.token_id_capture.resolution.resolvers import FileLineageResolver
from gym_ray.token_id_capture.store import TokenCaptureStore

__all__ = ["FatalSource", "FileLineage"]


class FileLineage(FileLineageResolver):
    """A lineage store that is made with a directory, as settings make one.

    Args:
        root: Directory of the token files.
    """

    def __init__(self, root: str) -> None:
        self._own = TokenCaptureStore(root)
        super().__init__(self._own)

    async def close(self) -> None:
        """Close the files as well."""
        await super().close()
        await self._own.close()


class FatalSource(TokenCaptureStore):
    """A source whose process is killed once behind a freeze, and once before a drop.

    Args:
        root: Directory of the token files.
        notes: Directory in which each death leaves a file, named after the rollout.
        at_freeze: Rollout whose first freeze is the last thing its process does.
        at_drop: Rollout whose first drop its process does not live to do.
    """

    def __init__(self, root: str, notes: str, at_freeze: str, at_drop: str) -> None:
        super().__init__(root)
        self._notes, self._at_freeze, self._at_drop = Path(notes), at_freeze, at_drop

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Freeze."""
        snapshot = await super().freeze(rollout_id)
        if rollout_id == self._at_freeze:
            self._die_once(rollout_id)
        return snapshot

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Drop."""
        if rollout_id == self._at_drop:
            self._die_once(rollout_id)
        return await super().drop(rollout_id, snapshot_id=snapshot_id, version=version)

    def _die_once(self, rollout_id: str) -> None:
        note = self._notes / rollout_id
        if not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
