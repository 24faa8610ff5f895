"""One training loop as its trainer sees it: begins steps, and calls their host in whatever process that is by now."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from gym_ray.actors.calls import get
from gym_ray.actors.training.feed import StepFeed
from gym_ray.actors.training.parts import TrainingParts
from gym_ray.actors.training.weights import SaidWeights
from gym_ray.errors import ClusterError, SettingsError
from gym_ray.rollouts.training.loop_plan import check_limits, step_plan
from gym_ray.rollouts.training.step_files import step_lines
from gym_ray.rollouts.training.weight_versions import VersionOrder
from gym_ray.settings import RunSettings, load_settings

__all__ = ["LoopLimits", "TrainingLoop", "loaded"]

_WHO = "RolloutCollector"


def loaded(settings: RunSettings | str | Path | Sequence[str | Path], environ: Mapping[str, str]) -> RunSettings:
    """Return the settings, read from their files where they are given as such.

    Args:
        settings: Settings, or their files.
        environ: Environment variables that the files may name.

    Raises:
        SettingsError: They are wrong.
    """
    if isinstance(settings, RunSettings):
        return settings
    files = [settings] if isinstance(settings, str | Path) else list(settings)
    return load_settings(files, environ=environ)


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """Limits of all steps of a loop, see :meth:`RolloutCollector.start`.

    Raises:
        SettingsError: One limits nothing.
    """

    max_in_flight: int | None
    max_undelivered_bytes: int
    max_staleness: int | None

    def __post_init__(self) -> None:
        least = {"max_in_flight": self.max_in_flight, "max_undelivered_bytes": self.max_undelivered_bytes}
        check_limits(_WHO, least, whole=True, least=1)
        check_limits(_WHO, {"max_staleness": self.max_staleness}, whole=True)


class TrainingLoop:
    """What a collector begins steps with. Close it with :meth:`close`.

    Attributes:
        weights: What was said of the weights.
    """

    def __init__(self, settings: RunSettings, output_dir: Path, parts: TrainingParts, limits: LoopLimits) -> None:
        self._settings, self._dir, self._parts, self._limits = settings, output_dir, parts, limits
        self.weights = SaidWeights(VersionOrder(output_dir), self.ask, parts.urls, parts.run_token)
        self._paused = self._closed = False

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the host and return its answer.

        Raises:
            ClusterError: The loop is closed, or the host cannot be reached.
            GymRayError: What the host raised.
        """
        if self._closed or not ray.is_initialized():
            raise ClusterError(f"the collector of {self._dir} is closed, or its Ray has ended; start another one")
        host = self._parts.host
        if self._parts.reopen() and self._paused:
            get(host.pause.remote(True), None)
        return get(getattr(host, method).remote(*arguments), None)

    def pause(self, paused: bool) -> None:
        """Start nothing more, or start again; a host that comes back is told, too."""
        self._paused = paused
        self.ask("pause", paused)

    def begin(
        self,
        rows: Iterable[Mapping[str, Any]],
        stop: threading.Event,
        *,
        groups: bool,
        rollout_timeout_s: float | None,
        limits: dict[str, Any],
    ) -> StepFeed:
        """Begin a step; see :meth:`RolloutCollector.collect` for what is raised."""
        most_staleness = self._limits.max_staleness
        if most_staleness is not None and self.weights.last is None:
            problem = "needs to know the weights; no version was said"
            raise SettingsError(_WHO, "max_staleness", problem, "call set_weight_version first")
        check_limits("collect", {"rollout_timeout_s": rollout_timeout_s, **limits})
        lines = step_lines(rows)
        spoken = self.weights.repeat()  # servers that others run, and started again, have forgotten it
        number, source = self.ask("next_step", lines)
        plan = step_plan(self._settings, source, rollout_timeout_s, self._limits.max_in_flight)
        most_bytes = self._limits.max_undelivered_bytes
        plan = replace(plan, groups=groups, max_undelivered_bytes=most_bytes, **limits)
        requested = self.ask("begin", number, plan)
        trained = frozenset[str]() if plan.run.tokens is None else plan.run.tokens.agents
        epoch = 0 if spoken is None else spoken.epoch
        how = (trained, most_staleness, lambda: self.weights.last, epoch, groups, stop)
        return StepFeed(self._parts.host, number, plan.run.paths, requested, *how)

    def close(self) -> None:
        """End everything; idempotent."""
        self._closed = True
        self._parts.held.close()
