"""What a job's environment is made of, and which of it is secret (D134).

A value says where it comes from: ``lit:text`` is the text, ``host:NAME`` what NAME is where the job is submitted,
``runtime:NAME`` what NAME is where it runs; the last never leaves that machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator

from gym_ray.errors import SettingsError
from gym_ray.settings.problems import MIN_SECRET_CHARS, is_secret_key

__all__ = ["EnvPlan", "EnvValue", "plan_environment", "split_value"]

_KINDS = ("lit", "host", "runtime")


def split_value(value: str) -> tuple[str, str]:
    """Return the kind of a value of an environment, and what follows it.

    Raises:
        ValueError: It is of no kind, or names no variable.
    """
    kind, colon, rest = value.partition(":")
    if not colon or kind not in _KINDS:
        raise ValueError("should begin with lit:, host: or runtime:")
    if kind != "lit" and (not rest or "=" in rest or "\0" in rest):
        raise ValueError(f"should name a variable: {kind}:NAME")
    return kind, rest


def _checked(value: str) -> str:
    split_value(value)
    return value


EnvValue = Annotated[str, AfterValidator(_checked)]


@dataclass(frozen=True, slots=True)
class EnvPlan:
    """The environment that a job's programs get on top of their node's.

    Args:
        literal: Values by name, known now; may hold credentials.
        runtime: Name of the variable that is looked up where the job runs, by the name that it gets.
        secrets: Texts among ``literal`` that must not be shown.
    """

    literal: Mapping[str, str] = field(default_factory=dict, repr=False)
    runtime: Mapping[str, str] = field(default_factory=dict)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    def applied(self, environ: Mapping[str, str], where: str) -> dict[str, str]:
        """Return an environment with these values on top.

        Args:
            environ: The environment where the job runs.
            where: What is named in an error.

        Raises:
            SettingsError: A variable that should be there is not; all such are listed.
        """
        missing = [f"{name} (for {own})" for own, name in self.runtime.items() if name not in environ]
        if missing:
            problem = f"not set where the job runs: {', '.join(missing)}"
            raise SettingsError(where, "env", problem, "set it on the nodes, or write host:NAME to take it along")
        return {**environ, **self.literal, **{own: environ[name] for own, name in self.runtime.items()}}

    def secrets_in(self, environ: Mapping[str, str]) -> frozenset[str]:
        """Return every text that must not be shown, those that are looked up in ``environ`` included."""
        found = {environ.get(name, "") for name in self.runtime.values()}
        return self.secrets | {text for text in found if len(text) >= MIN_SECRET_CHARS}

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`of_json` reads; for files that only their owner may read."""
        return {"literal": dict(self.literal), "runtime": dict(self.runtime), "secrets": sorted(self.secrets)}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> EnvPlan:
        """Return what :meth:`to_json` wrote.

        Raises:
            KeyError, TypeError: It is something else.
        """
        return cls(dict(value["literal"]), dict(value["runtime"]), frozenset(value["secrets"]))


def plan_environment(values: Mapping[str, str], environ: Mapping[str, str], *, where: str, key: str) -> EnvPlan:
    """Return the plan of a document's values, those of the host looked up.

    Args:
        values: Values by name, each ``lit:``, ``host:`` or ``runtime:``.
        environ: The environment of whoever submits.
        where: The document, for errors.
        key: Dotted key of ``values`` in it.

    Raises:
        SettingsError: A ``host:`` variable is not set.
    """
    literal: dict[str, str] = {}
    runtime: dict[str, str] = {}
    secrets: set[str] = set()
    for name, value in values.items():
        kind, rest = split_value(value)
        if kind == "runtime":
            runtime[name] = rest
            continue
        if kind == "host" and rest not in environ:
            problem = f"the environment variable {rest} is not set here"
            raise SettingsError(where, f"{key}.{name}", problem, f"export {rest}, or write runtime:{rest} or lit:…")
        literal[name] = text = environ[rest] if kind == "host" else rest
        if (kind == "host" or is_secret_key(name)) and len(text) >= MIN_SECRET_CHARS:
            secrets.add(text)
    return EnvPlan(literal, runtime, frozenset(secrets))
