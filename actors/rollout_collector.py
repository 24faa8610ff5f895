"""The collector that a training loop calls: rows in, exactly one result out for each rollout, tokens without a copy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gym_ray.actors.calls import get
from gym_ray.actors.training_feed import StepFeed, in_threads
from gym_ray.actors.training_parts import RayPlace, TrainingParts, loaded, started_parts
from gym_ray.errors import SettingsError
from gym_ray.rollouts.training.loop_plan import step_plan
from gym_ray.rollouts.training.results import RolloutBatch, RolloutGroup, RolloutResult, grouped
from gym_ray.rollouts.training.weight_versions import VersionOrder, say_version
from gym_ray.server_directory import ServerDirectory
from gym_ray.settings import RunSettings

__all__ = ["RolloutCollector"]

Rows = Sequence[Mapping[str, Any]]
Results = Generator[RolloutResult | RolloutGroup]
_LANES = 64


class RolloutCollector:
    """Collects rollouts for a training loop, one step after the other (D169). Make one with :meth:`start`.

    Each call of a ``collect`` method is a small durable run of its own, ``<output_dir>/step-<n>.jsonl``.
    """

    def __init__(
        self, settings: RunSettings, output_dir: Path, parts: TrainingParts, limits: tuple[int | None, int, int | None]
    ) -> None:
        self._settings, self._dir, self._parts = settings, output_dir, parts
        self._max_in_flight, self._max_bytes, self._max_staleness = limits
        self._order = VersionOrder(output_dir)
        self._host = parts.host
        self.interrupted_steps = parts.interrupted

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

        Raises:
            SettingsError: The settings are wrong.
            ClusterError: Ray cannot be joined, or an actor did not start.
            StorageError: Another collector uses the directory, or it cannot be written.
        """
        settings, place = loaded(settings), Path(output_dir).absolute()
        cluster = RayPlace(address, namespace, Path(cache_dir or Path.home() / ".cache" / "gym-ray"))
        lanes = max(_LANES, max_in_flight or 0)
        parts = started_parts(settings, place, cluster, directory, run_token, lanes=lanes)
        try:
            return cls(settings, place, parts, (max_in_flight, max_undelivered_bytes, max_staleness))
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
    ) -> Results:
        """Run the rows and yield exactly one result for each rollout as they finish, or group after group.

        Whoever takes none slows the start of rollouts down; leaving the iteration cancels what is left.

        Args:
            rows: Input rows (D5); the settings say how often each runs and by whom.
            timeout_s: Time for the whole step; what is undecided then is masked with ``deadline``.
            rollout_timeout_s: Time for one rollout, None for that of the settings.
            group_timeout_s: Time for a group since its first rollout began; then it is given as it is.
            groups: Yield all repeats of a task together.

        Raises:
            InputError: A row cannot be used; nothing ran.
            StorageError: The step's files cannot be written.
            ClusterError: A server does not know the weight version.
        """
        limits = {"timeout_s": timeout_s, "group_timeout_s": group_timeout_s}
        feed = self._begin(rows, rollout_timeout_s, groups, limits)
        for unit in feed.units():
            yield grouped(unit) if groups else unit[0]

    async def acollect(self, rows: Rows, **how: Any) -> AsyncIterator[RolloutResult | RolloutGroup]:
        """Do what :meth:`collect` does, in a thread, so that the caller's loop goes on."""
        async for item in in_threads(self.collect(rows, **how)):
            yield item

    def collect_batch(self, rows: Rows, **how: Any) -> RolloutBatch:
        """Run the rows and return all results in the order of rows and repeats; takes what :meth:`collect` takes."""
        found = [item for item in self.collect(rows, **how) if isinstance(item, RolloutResult)]
        return RolloutBatch(tuple(sorted(found, key=lambda item: (item.row_index, item.rollout_index))))

    def raw(self, rows: Rows, **how: Any) -> Generator[tuple[Mapping[str, Any], dict[str, Any]]]:
        """Yield ``(row, reply)`` as they finish, rows as given and replies without our members (D61)."""
        for item in self.collect(rows, **how):
            if isinstance(item, RolloutResult):
                yield rows[item.row_index], item.reply()

    def set_weight_version(self, version: int, *, new_epoch: bool = False) -> None:
        """Say which weights are served from now on; every model server knows it when this returns.

        Raises:
            SettingsError: It is no whole number, or goes back without ``new_epoch``.
            ClusterError: A server refused or did not answer; say it again.
        """
        spoken = self._order.advance(version, new_epoch=new_epoch)
        self._say(spoken.version)
        get(self._host.set_epoch.remote(spoken.epoch), None)  # last: what begins before it may meet both epochs

    def pause(self) -> None:
        """Start no rollout until :meth:`resume`; what runs goes on, and time limits run on."""
        get(self._host.pause.remote(True), None)

    def resume(self) -> None:
        """Start rollouts again."""
        get(self._host.pause.remote(False), None)

    def drain(self, timeout_s: float | None = None) -> None:
        """Start nothing more of the steps under way, and return when what ran has ended, or was masked in time."""
        get(self._host.drain.remote(timeout_s), None)

    def cancel(self, rollout_ids: Sequence[str] | None = None) -> int:
        """End rollouts under way, None for all; return how many. Each is delivered as masked with ``cancelled``."""
        ended: int = get(self._host.cancel.remote(None if rollout_ids is None else list(rollout_ids)), None)
        return ended

    def status(self) -> dict[str, Any]:
        """Return where each step under way stands, and the weight version that was said last."""
        last = self._order.last
        found: dict[str, Any] = get(self._host.status.remote(), None)
        return found | {"weight_version": None if last is None else last.version}

    def close(self) -> None:
        """End what runs, store what has ended, end what was started; never the Ray of a caller. Idempotent."""
        self._parts.held.close()

    def _begin(self, rows: Rows, rollout_timeout_s: float | None, groups: bool, limits: dict[str, Any]) -> StepFeed:
        if self._max_staleness is not None and self._order.last is None:
            problem = "needs to know the weights; no version was said"
            raise SettingsError("RolloutCollector", "max_staleness", problem, "call set_weight_version first")
        self._parts.reopen()
        last = self._order.last
        if last is not None:  # a server that was started again has forgotten it
            self._say(last.version)
            get(self._host.set_epoch.remote(last.epoch), None)
        number, source = get(self._host.next_step.remote(list(rows)), None)
        plan = step_plan(self._settings, source, rollout_timeout_s, self._max_in_flight)
        plan = replace(plan, groups=groups, max_undelivered_bytes=self._max_bytes, **limits)
        requested = get(self._host.begin.remote(number, plan), None)
        trained = frozenset[str]() if plan.run.tokens is None else plan.run.tokens.agents
        paths = plan.run.paths
        return StepFeed(self._host, number, paths, requested, trained, self._max_staleness, self._order, groups)

    def _say(self, version: int) -> None:
        say_version(self._parts.urls(), version, self._parts.run_token)
