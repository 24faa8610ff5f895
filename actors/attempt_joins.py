"""Hand results to joiners: one of them stores each record, and one that falls silent is ended before another may."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnschedulableError, ObjectLostError, RayActorError, RayTaskError

from gym_ray.actors.packing import packed
from gym_ray.actors.seats import Seat, first_line
from gym_ray.errors import ClusterError, GymRayError
from gym_ray.evidence.run_result import RunResult
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest, Lost, ReplyHandle

__all__ = ["AttemptJoins"]


class AttemptJoins:
    """Joins attempts of one run.

    Args:
        run: What joiners call the run, where they hold several; None for those of one run.
        patience_s: Time in which a joiner that has work must finish some of it.
    """

    def __init__(self, run: str | None, patience_s: float) -> None:
        self._run, self._patience_s = run, patience_s

    async def join(
        self, seat: Seat, job: AttemptJob, result: ReplyHandle | RunResult, request: JoinRequest
    ) -> JoinOutcome | Lost:
        """Join one attempt in a joiner.

        Raises:
            ClusterError: The joiner's process ended, or hung and was ended; ask again with ``retry`` set.
            GymRayError: The record could not be stored.
        """
        seat.busy += 1
        value = result.value if isinstance(result, ReplyHandle) else result
        try:
            sent = seat.handle.join.remote(packed(job, request, self._run), value)
            call = asyncio.wrap_future(sent.future())
            await self._end_if_silent(seat, call)
            outcome: JoinOutcome = call.result()
        except (RayActorError, ActorUnschedulableError) as error:
            seat.gone = seat.gone or isinstance(error, ActorDiedError | ActorUnschedulableError)
            raise ClusterError(f"{seat.name}: {first_line(error)}") from error
        except ObjectLostError as error:  # first: Ray raises a lost argument as an error that is a task's as well
            return Lost("node_lost", f"the reply was lost with its node: {first_line(error)}")
        except RayTaskError as error:
            if isinstance(error.cause, GymRayError):
                raise error.cause from error
            raise ClusterError(f"{seat.name}: {error.cause!r}") from error
        finally:
            seat.busy -= 1
        return outcome

    async def _end_if_silent(self, seat: Seat, call: asyncio.Future[Any]) -> None:
        """Wait for a join; end the process of a joiner that hangs, so that it cannot store a record behind our back."""
        begun_at = time.monotonic()
        while not call.done():
            left_s = max(begun_at, seat.heard_at) + self._patience_s - time.monotonic()
            if left_s <= 0:
                seat.heard_at = time.monotonic()  # whoever else waits for this seat need not end it again
                ray.kill(seat.handle, no_restart=False)
                await asyncio.wait([call])
                return
            await asyncio.wait([call], timeout=left_s)
        seat.heard_at = time.monotonic()
