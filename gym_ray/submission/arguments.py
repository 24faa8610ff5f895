"""What a benchmark is run with, secrets included: a file that only its owner may read, and that no log may show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import StorageError
from gym_ray.submission.environment import EnvPlan
from gym_ray.submission.planning import BenchmarkPlan

__all__ = ["ARGUMENTS", "BenchmarkArguments", "Program", "read_arguments"]

ARGUMENTS = "arguments.json"
_RESUME = "resume_from_cache"

Program = str | tuple[str, ...]
"""A shell command, or the words of one."""


@dataclass(frozen=True, slots=True)
class BenchmarkArguments:
    """What a driver runs.

    Args:
        eval_run: What follows ``gym-ray eval run``; counts where there is no ``command``.
        environ: The environment.
        prepare: What runs first, None for nothing.
        command: What runs in place of ``eval run``.
        secrets: Texts that no log may show.
    """

    eval_run: tuple[str, ...] = field(repr=False)
    environ: EnvPlan
    prepare: Program | None = field(default=None, repr=False)
    command: Program | None = field(default=None, repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    @classmethod
    def of(cls, plan: BenchmarkPlan) -> BenchmarkArguments:
        """Return what a planned benchmark is run with."""
        return cls(plan.arguments, plan.environ, plan.prepare, plan.command, plan.secrets)

    def resumed(self) -> BenchmarkArguments:
        """Return the same for a run that goes on with what is there, also where it was not planned so."""
        if self.command is not None:
            return self
        own = tuple(word for word in self.eval_run if not word.startswith(f"+{_RESUME}="))
        return replace(self, eval_run=(*own, f"+{_RESUME}=true"))

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`of_json` reads."""
        return {
            "eval_run": list(self.eval_run),
            "environ": self.environ.to_json(),
            "prepare": _listed(self.prepare),
            "command": _listed(self.command),
            "secrets": sorted(self.secrets),
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> BenchmarkArguments:
        """Return what :meth:`to_json` wrote.

        Raises:
            KeyError, TypeError: It is something else.
        """
        words = _words(value["eval_run"])
        environ = EnvPlan.of_json(value["environ"])
        prepare, command = _program(value["prepare"]), _program(value["command"])
        return cls(words, environ, prepare, command, frozenset(_words(value["secrets"])))


def read_arguments(directory: Path) -> BenchmarkArguments:
    """Return what the benchmark of a directory is run with.

    Raises:
        StorageError: The file cannot be read, or is damaged; nothing of its content is shown.
    """
    path = directory / ARGUMENTS
    try:
        value = exact_json.loads_object(path.read_bytes())
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        return BenchmarkArguments.of_json(value or {})
    except (KeyError, TypeError, ValueError):
        raise StorageError(f"{path}: is damaged: not what is written when a job is submitted") from None


def _listed(program: Program | None) -> str | list[str] | None:
    return list(program) if isinstance(program, tuple) else program


def _program(value: Any) -> Program | None:
    return value if value is None or isinstance(value, str) else _words(value)


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise TypeError("not a list of words")
    return tuple(value)
