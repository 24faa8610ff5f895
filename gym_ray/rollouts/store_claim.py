"""A run's claim on its rollout ids where there are no locks: an object that the run renews while it lives (A20, D19).

Two runs never go on with one id, within this bound: a run that is stopped dead for more than ``WATCHED_S`` (a paused
machine, a network that is cut) may lose its claim to another, and says so in its log when it finds out. A listing that
hides a claim that was made within its delay hides that run.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from gym_ray import exact_json
from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import StorageError, StorageMissingError
from gym_ray.model_call_capture.registry import own_place
from gym_ray.storage.opening import open_store
from gym_ray.storage.store import SegmentStore

__all__ = ["RENEWED_S", "WATCHED_S", "StoreClaim"]

RENEWED_S = 5.0
"""How often a living run renews its claim."""
WATCHED_S = 20.0
"""A claim in our way that does not change for so long belongs to a dead run."""

_OWNERS = "owners/"
_LOOK_S = 0.5

_log = logging.getLogger(__name__)


class StoreClaim:
    """A claim, held until :meth:`close` or the end of the process.

    Args:
        location: Place of captures.
        rollout_ids: Base ids, without attempts; read once.
        output: The run's main output, named in the message that another run gets.
        store: Where claims are kept; that of the location when None.
        wait: Lets time pass while a claim in our way is watched.

    Raises:
        StorageError: A live run has one of the ids; the message names its output, the id and the remedy. Or the store
            cannot be written or read.
    """

    def __init__(
        self,
        location: CaptureLocation,
        rollout_ids: Iterable[str],
        output: Path,
        *,
        store: SegmentStore | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._place, self._wait = str(location), wait
        options = location.storage_options or None
        self._store = store or open_store(own_place(location.where), storage_options=options)
        self._name = f"{_OWNERS}{uuid.uuid4().hex}"
        self._beat = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        mine = "".join(f"{rollout_id}\n" for rollout_id in rollout_ids).encode()
        try:
            self._store.create(f"{self._name}.ids", mine)
            self.renew(output)
            # Ours is there before we look, so of two runs that begin together at least one sees the other.
            self._refuse_overlap(mine)
        except BaseException:
            self._remove(self._name)
            self._store.close()
            raise
        self._thread = threading.Thread(target=self._keep, args=(output,), name="capture-claim", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give the ids back; idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ended.set()
        thread.join()
        self._remove(self._name)
        self._store.close()

    def renew(self, output: Path) -> None:
        """Show that the run lives.

        Raises:
            StorageError: It could not be done.
        """
        self._beat += 1
        self._store.publish(f"{self._name}.beat", exact_json.dumps({"output": str(output), "beat": self._beat}) + b"\n")

    def _keep(self, output: Path) -> None:
        while not self._ended.wait(RENEWED_S):
            try:
                self.renew(output)
                if not self._store.exists(f"{self._name}.ids"):
                    _log.error(
                        "%s: another run took this run for dead and took its rollout ids over; captures of both may "
                        "be cleared by either: stop one of them",
                        self._place,
                    )
                    return
            except StorageError as error:
                _log.warning("%s: the claim on this run's rollout ids cannot be renewed: %s", self._place, error)

    def _refuse_overlap(self, mine: bytes) -> None:
        others = {name.removesuffix(".ids") for name in self._store.list(_OWNERS) if name.endswith(".ids")}
        others.discard(self._name)
        if not others:
            return
        wanted = set(mine.splitlines())
        overlapping = {other: taken for other in sorted(others) if (taken := self._taken(other, wanted)) is not None}
        for other, beat in self._watched({other: self._beat_of(other) for other in overlapping}).items():
            owner = (exact_json.loads_object(beat) or {}).get("output", "another output")
            raise StorageError(
                f"{self._place}: rollout id {overlapping[other]} belongs to the run that writes {owner}, which goes "
                "on; wait for it or choose another model_call_capture_dir"
            )
        for other in overlapping:
            _log.warning("%s: the run of claim %s is dead; its rollout ids are taken over", self._place, other)
            self._remove(other)

    def _taken(self, other: str, wanted: set[bytes]) -> str | None:
        try:
            theirs = self._store.read(f"{other}.ids").splitlines()
        except StorageMissingError:
            return None  # given back since it was listed
        return next((line.decode() for line in theirs if line in wanted), None)

    def _beat_of(self, other: str) -> bytes | None:
        try:
            return self._store.read(f"{other}.beat")
        except StorageMissingError:
            return None

    def _watched(self, before: dict[str, bytes | None]) -> dict[str, bytes]:
        """Return the claims that change while we look, as they are then; all others are of dead runs."""
        waited = 0.0
        while before and waited < WATCHED_S:
            self._wait(_LOOK_S)
            waited += _LOOK_S
            changed = {}
            for other, old in list(before.items()):
                beat = self._beat_of(other)
                if beat is None and old is not None:
                    del before[other]  # given back
                elif beat is not None and beat != old:
                    changed[other] = beat
            if changed:
                return changed
        return {}

    def _remove(self, name: str) -> None:
        for suffix in (".ids", ".beat"):
            try:
                self._store.delete(f"{name}{suffix}")
            except StorageError as error:
                _log.warning("%s: the claim %s cannot be removed: %s", self._place, name, error)
