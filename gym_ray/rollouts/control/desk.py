"""The desk of a live run: does what files ask of it, each at most once, and says each second where the run stands.

It lives on the collection's event loop and must never end a run: a file that cannot be read or written is logged.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import GymRayError, StorageError
from gym_ray.rollouts.collection import Collection
from gym_ray.rollouts.control.control_files import MOST_BYTES, ControlPlaces, DamagedRequest, Request, publish_small
from gym_ray.rollouts.run_manifest import read_manifest
from gym_ray.rollouts.run_paths import RunPaths

__all__ = ["ControlDesk"]

_log = logging.getLogger(__name__)
_MOST_PLACEMENTS = 64
_MOST_TOLD = 1000
_ANSWERS_KEPT_S = 3600.0


class ControlDesk:
    """Serves one collection. Start it before the run and close it behind it.

    Args:
        paths: The run.
        collection: What is steered.
        interval_s: Seconds between two looks.
        clock: Tells seconds that only go on; by it, answers that nobody fetched are kept for an hour.
    """

    def __init__(
        self,
        paths: RunPaths,
        collection: Collection,
        *,
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths, self._collection, self._interval_s = paths, collection, interval_s
        self._places, self._desk = ControlPlaces.of(paths), secrets.token_hex(16)
        self._run_id, self._begun_at = "", time.time()
        self._ended_before = 0
        self._clock, self._answered = clock, deque[tuple[float, Path]]()
        self._closed: asyncio.Future[None]
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the desk: from now on requests are looked for and the status is kept.

        Raises:
            StorageError: The control directory cannot be made, or the run has no manifest.
        """
        self._run_id = await asyncio.to_thread(self._open)
        before = self._collection.progress()
        self._ended_before = before.done + before.failed + before.unstored
        await self._tell("running")
        self._closed = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def aclose(self) -> None:
        """Answer what waits, say how the run ended, and stop; idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        self._closed.set_result(None)
        await asyncio.wait({task})
        await self._tell("over")

    def _open(self) -> str:
        manifest = read_manifest(self._paths)
        if manifest is None:
            raise StorageError(f"{self._paths.manifest}: there is none; begin the run first")
        self._places.make()
        for path in self._places.answers.iterdir():  # of earlier collectors
            path.unlink(missing_ok=True)
        for path in self._places.taken.iterdir():
            if not path.name.startswith("."):
                self._answer(path.stem, error="the collector ended while it did this; look at the status, ask again")
                path.unlink(missing_ok=True)
        return manifest.run_id

    async def _serve(self) -> None:
        while not self._closed.done():
            await asyncio.wait([self._closed], timeout=self._interval_s)
            await self._look()
            await self._tell("running")

    async def _look(self) -> None:
        try:
            for path in await asyncio.to_thread(self._waiting):
                request = await asyncio.to_thread(self._claim, path)
                if request is not None:
                    answer = await self._apply(request)
                    await asyncio.to_thread(self._done, request, answer)
            await asyncio.to_thread(self._sweep)
        except (OSError, GymRayError) as error:
            _log.warning("%s: requests cannot be served: %s", self._places.root, error)

    def _waiting(self) -> list[Path]:
        return sorted(path for path in self._places.requests.iterdir() if not path.name.startswith("."))

    def _claim(self, path: Path) -> Request | None:
        """Take a request: what is taken is never applied by anybody else, also not after a crash."""
        try:
            request = _read(path)
        except FileNotFoundError:
            return None  # withdrawn
        except DamagedRequest as error:
            self._answer(path.stem, error=f"{path.name}: {error}; nothing was done")
            path.replace(self._places.refused / f"{path.name}.{secrets.token_hex(4)}")
            return None
        if (request.run_id, request.desk) != (self._run_id, self._desk):
            self._answer(request.id, error="this was asked of an earlier collector; nothing was done, ask again")
            path.unlink(missing_ok=True)
            return None
        try:
            path.replace(self._places.taken / path.name)
        except FileNotFoundError:
            return None
        return request

    async def _apply(self, request: Request) -> dict[str, Any]:
        run, ids = self._collection, request.rollout_ids
        match request.action:
            case "pause":
                run.pause()
            case "resume":
                run.resume()
            case "drain":
                run.drain()
            case "cancel":
                ended = run.cancel(ids)
                reason = "it waits for its turn, has ended, or is no rollout of this run"
                return _told({key: None if yes else reason for key, yes in ended.items()})
            case "requeue":
                return _told(await self._requeue(ids))
        return {}

    async def _requeue(self, ids: tuple[str, ...] | None) -> dict[str, str | None]:
        if ids is None:
            return {f"row {ordinal}": reason for ordinal, reason in self._collection.requeue().items()}
        rows = await self._collection.rows_without_result(ids)
        answers = self._collection.requeue(rows.values())
        unknown = "no row that failed, was given up or was cancelled has this id"
        return {key: answers[rows[key]] if key in rows else unknown for key in ids}

    def _done(self, request: Request, answer: dict[str, Any]) -> None:
        self._answer(request.id, **answer)
        (self._places.taken / f"{request.id}.json").unlink(missing_ok=True)

    def _answer(self, request_id: str, *, error: str | None = None, **answer: Any) -> None:
        value = {"id": request_id, "error": error, "answered_at": time.time(), **answer}
        path = self._places.answers / f"{request_id}.json"
        publish_small(path, exact_json.dumps(value))
        self._answered.append((self._clock(), path))

    def _sweep(self) -> None:
        """Remove answers that nobody fetched for an hour."""
        while self._answered and self._clock() - self._answered[0][0] > _ANSWERS_KEPT_S:
            self._answered.popleft()[1].unlink(missing_ok=True)

    async def _tell(self, state: str) -> None:
        value = self._status(state)
        try:
            await asyncio.to_thread(publish_small, self._places.status, exact_json.dumps(value))
        except GymRayError as error:
            _log.warning("the status cannot be told: %s", error)

    def _status(self, state: str) -> dict[str, Any]:
        progress, places, now = self._collection.progress(), self._collection.placements(), time.time()
        ended = progress.done + progress.failed + progress.unstored
        return {
            "run_id": self._run_id,
            "desk": self._desk,
            "state": state,
            "at": now,
            "begun_at": self._begun_at,
            "interval_s": self._interval_s,
            "progress": {**asdict(progress), "complete": progress.complete},
            "queue": progress.pending + progress.starting,
            "in_flight": len(places),
            "oldest_s": now - places[0].begun_at if places else None,
            "failures": self._collection.metrics.to_dict()["overall"]["failures"],
            "ended_per_s": (ended - self._ended_before) / max(now - self._begun_at, 1e-3),
            "placements": [asdict(place) for place in places[:_MOST_PLACEMENTS]],
        }


def _read(path: Path) -> Request:
    """Return the request in a file.

    Raises:
        DamagedRequest: It holds none.
        OSError: It cannot be read.
    """
    if path.is_symlink() or path.suffix != ".json":
        raise DamagedRequest("not a plain .json file")
    if path.stat().st_size > MOST_BYTES:
        raise DamagedRequest(f"larger than {MOST_BYTES} bytes")
    if not path.is_file():
        raise DamagedRequest("not a plain .json file")
    return Request.decode(path.stem, path.read_bytes())


def _told(answers: dict[str, str | None]) -> dict[str, Any]:
    """Return which were done, and why others were not; the lists are bounded, the counts are not."""
    done = [key for key, reason in answers.items() if reason is None]
    refused = {key: reason for key, reason in answers.items() if reason is not None}
    return {
        "done": done[:_MOST_TOLD],
        "done_count": len(done),
        "refused": dict(list(refused.items())[:_MOST_TOLD]),
        "refused_count": len(refused),
    }
