"""The collector that a training loop calls: rows in, exactly one result out for each rollout, tokens without a copy."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gym_ray.actors.training.feed import in_threads
from gym_ray.actors.training.loop import LoopLimits, TrainingLoop, loaded
from gym_ray.actors.training.parts import RayPlace, started_parts
from gym_ray.rollouts.training.loop_plan import check_limits
from gym_ray.rollouts.training.results import RolloutBatch, RolloutGroup, RolloutResult, grouped
from gym_ray.server_directory import ServerDirectory
from gym_ray.settings import RunSettings

__all__ = ["RolloutCollector"]

Rows = Iterable[Mapping[str, Any]]
Results = Generator[RolloutResult | RolloutGroup]
_LANES = 64


class RolloutCollector:
    """Collects rollouts for a training loop, one step after the other (D169). Make one with :meth:`start`.

    Each call of a ``collect`` method is a small durable run of its own, ``<output_dir>/step-<n>.jsonl``. Threads may
    use one collector at once.

    Attributes:
        interrupted_steps: Numbers of the steps that an earlier loop left half finished; their files stay.
    """

    def __init__(self, loop: TrainingLoop, interrupted_steps: tuple[int, ...]) -> None:
        self._loop, self.interrupted_steps = loop, interrupted_steps

    @classmethod
    def start(
        cls,
        settings: RunSettings | str | Path | Sequence[str | Path],
        *,
        output_dir: str | Path,
        address: str | None = None,
        namespace: str | None = None,
        directory: ServerDirectory | None = None,
        run_token: str | None = None,
        cache_dir: str | Path | None = None,
        max_in_flight: int | None = None,
        max_undelivered_bytes: int = 256 * 1024**2,
        max_staleness: int | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> RolloutCollector:
        """Start servers, workers and joiners, or use the Ray that this process has begun; then it is never ended here.

        Args:
            settings: Settings, or their files.
            output_dir: Where the steps write; one collector at a time.
            address: Cluster to join when this process has not begun Ray; None starts a local one.
            namespace: Where the actors' names live, None for one of their own.
            directory: Servers that run already, None to start those of the settings.
            run_token: What those servers ask for.
            cache_dir: Where an embedded model's weights are assembled.
            max_in_flight: Rollouts at once, None for what the workers can take.
            max_undelivered_bytes: Nothing starts while results of this size wait to be taken.
            max_staleness: Rows sampled more versions ago are masked, None for no limit.
            environ: Variables that the settings may name, None for those of this process.

        Raises:
            SettingsError: The settings are wrong.
            ClusterError: Ray cannot be joined, or an actor did not start.
            StorageError: Another collector uses the directory, or it cannot be written.
        """
        limits = LoopLimits(max_in_flight, max_undelivered_bytes, max_staleness)
        environ = os.environ if environ is None else environ
        settings, place = loaded(settings, environ), Path(output_dir).absolute()
        cluster = RayPlace(address, namespace, Path(cache_dir or Path.home() / ".cache" / "gym-ray"), environ)
        lanes = max(_LANES, max_in_flight or 0)
        parts = started_parts(settings, place, cluster, directory, run_token, lanes=lanes)
        try:
            return cls(TrainingLoop(settings, place, parts, limits), parts.interrupted)
        except BaseException:
            parts.held.close()
            raise

    def __enter__(self) -> RolloutCollector:
        """Return the collector; leaving the block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the collector."""
        self.close()

    def collect(
        self,
        rows: Rows,
        *,
        timeout_s: float | None = None,
        rollout_timeout_s: float | None = None,
        group_timeout_s: float | None = None,
        groups: bool = False,
        stop: threading.Event | None = None,
    ) -> Results:
        """Run the rows and yield exactly one result for each rollout as they finish, or group after group.

        Whoever takes none slows the start of rollouts down; leaving the iteration cancels what is left.

        Args:
            rows: Input rows (D5); the settings say how often each runs and by whom.
            timeout_s: Time for the whole step; what is undecided then is masked with ``deadline``.
            rollout_timeout_s: Time for one rollout, None for that of the settings.
            group_timeout_s: Time for a group since its first rollout began; then it is given as it is.
            groups: Yield all repeats of a task together.
            stop: Whoever sets it, in another thread, ends the iteration soon after; what is left is cancelled.

        Raises:
            InputError: A row cannot be used; nothing ran.
            StorageError: The step's files cannot be written.
            SettingsError: A limit is none.
            ClusterError: A server does not know the weight version, or the collector is closed.
        """
        limits = {"timeout_s": timeout_s, "group_timeout_s": group_timeout_s}
        stop = stop or threading.Event()
        feed = self._loop.begin(rows, stop, groups=groups, rollout_timeout_s=rollout_timeout_s, limits=limits)
        for unit in feed.units():
            yield grouped(unit) if groups else unit[0]

    async def acollect(self, rows: Rows, **how: Any) -> AsyncIterator[RolloutResult | RolloutGroup]:
        """Do what :meth:`collect` does, in a thread, so that the caller's loop goes on; who cancels waits for none."""
        stop = threading.Event()
        async for item in in_threads(self.collect(rows, stop=stop, **how), stop):
            yield item

    def collect_batch(self, rows: Rows, **how: Any) -> RolloutBatch:
        """Run the rows and return all results in the order of rows and repeats; takes what :meth:`collect` takes."""
        found = [item for item in self.collect(rows, **how) if isinstance(item, RolloutResult)]
        return RolloutBatch(tuple(sorted(found, key=lambda item: (item.row_index, item.rollout_index))))

    def raw(self, rows: Rows, **how: Any) -> Generator[tuple[Mapping[str, Any], dict[str, Any]]]:
        """Yield ``(row, reply)`` as they finish, rows as given and replies without our members (D61)."""
        given = rows if isinstance(rows, Sequence) else list(rows)
        for item in self.collect(given, **how):
            if isinstance(item, RolloutResult):
                yield given[item.row_index], item.reply()

    def set_weight_version(self, version: int, *, new_epoch: bool = False) -> None:
        """Say which weights are served from now on; every model server knows it when this returns.

        With ``new_epoch``, results whose attempt began before are masked: their versions mean other weights.

        Raises:
            SettingsError: It is no whole number, or goes back without ``new_epoch``.
            ClusterError: A server refused or did not answer; say it again.
        """
        self._loop.weights.advance(version, new_epoch=new_epoch)

    def pause(self) -> None:
        """Start no rollout until :meth:`resume`; what runs goes on, and time limits run on."""
        self._loop.pause(True)

    def resume(self) -> None:
        """Start rollouts again."""
        self._loop.pause(False)

    def drain(self, timeout_s: float | None = None) -> None:
        """Start nothing more of the steps under way, and return when what ran has ended, or was masked in time."""
        check_limits("drain", {"timeout_s": timeout_s})
        self._loop.ask("drain", timeout_s)

    def cancel(self, rollout_ids: Sequence[str] | None = None) -> int:
        """End rollouts under way, None for all; return how many. Each is delivered as masked with ``cancelled``."""
        ended: int = self._loop.ask("cancel", None if rollout_ids is None else list(rollout_ids))
        return ended

    def status(self) -> dict[str, Any]:
        """Return where each step under way stands, and the weight version that was said last."""
        last = self._loop.weights.last
        found: dict[str, Any] = self._loop.ask("status")
        return found | {"weight_version": None if last is None else last.version}

    def close(self) -> None:
        """End what runs, store what has ended, end what was started; never the Ray of a caller. Idempotent."""
        self._loop.close()
