"""Fills in ``${key}`` and ``${oc.env:VAR}`` (A §17, D126).

The grammar is OmegaConf's, through its own parser. The environment is a mapping that the caller passes: the process's
own is never read, and no resolver is registered globally.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar_parser import parse
from omegaconf.grammar_visitor import GrammarVisitor

from gym_ray.errors import SettingsError
from gym_ray.settings.problems import KeyPath, did_you_mean, dotted, is_secret_key

__all__ = ["Interpolator", "escape_interpolation", "is_interpolation"]

_ENDPOINT_KEYS = ("policy_base_url", "policy_api_key", "policy_model_name")


def is_interpolation(value: object) -> bool:
    """Say whether a value has a ``${`` that must be filled in, or an escaped one that must be unescaped."""
    return isinstance(value, str) and "${" in value


def escape_interpolation(text: str) -> str:
    r"""Return text that fills in to ``text`` again: ``${`` becomes ``\${``, backslashes before it double."""
    head, *rest = text.split("${")
    for part in rest:
        backslashes = len(head) - len(head.rstrip("\\"))
        head += "\\" * (backslashes + 1) + "${" + part
    return head


class Interpolator:
    """Fills in the interpolations of one document.

    Args:
        tree: The merged settings; they are not changed.
        environ: What ``${oc.env:VAR}`` reads.
        place: Gives ``file:line`` for a key path, for error messages.
    """

    def __init__(self, tree: dict[str, Any], environ: Mapping[str, str], place: Callable[[KeyPath], str]) -> None:
        self._tree, self._environ, self._place = tree, environ, place
        self._active: list[KeyPath] = []
        self.mistakes: list[SettingsError] = []
        self.secrets: set[str] = set()

    def resolve(self) -> dict[str, Any]:
        """Return the tree with everything filled in; what could not be is None there and listed in ``mistakes``."""
        resolved: dict[str, Any] = self._resolve((), self._tree, keep_going=True)
        return resolved

    def _resolve(self, path: KeyPath, value: Any, *, keep_going: bool = False) -> Any:
        if isinstance(value, dict):
            return {key: self._resolve((*path, key), child, keep_going=keep_going) for key, child in value.items()}
        if isinstance(value, list):
            return [self._resolve((*path, i), child, keep_going=keep_going) for i, child in enumerate(value)]
        if not is_interpolation(value):
            return value
        try:
            return self._evaluate(path, value)
        except SettingsError as mistake:
            if not keep_going:
                raise
            # An endpoint's key counts only where a server refers to it, and that server then has this very mistake: one
            # env.yaml serves runs with and without the endpoint.
            if not (len(path) == 1 and path[0] in _ENDPOINT_KEYS):
                self.mistakes.append(mistake)
            return None

    def _evaluate(self, path: KeyPath, text: str) -> Any:
        if path in self._active:
            raise self._error(path, "its interpolations go round in a circle", "write one of the values out")
        visitor = GrammarVisitor(
            node_interpolation_callback=lambda key, _memo: self._key(path, key),
            resolver_interpolation_callback=lambda name, args, **_: self._call(path, name, args),
            memo=set(),
        )
        self._active.append(path)
        try:
            return visitor.visit(parse(text))
        except OmegaConfBaseException:
            problem, remedy = "not a valid interpolation", "write ${key} or ${oc.env:VAR}, and \\${ for a plain ${"
            raise self._error(path, problem, remedy) from None
        finally:
            self._active.pop()

    def _key(self, path: KeyPath, key: str) -> Any:
        names = key.replace("[", ".").replace("]", "").lstrip(".").split(".")
        levels_up = len(key) - len(key.lstrip("."))
        start: KeyPath = path[: max(len(path) - levels_up, 0)] if levels_up else ()
        found: KeyPath = ()
        value: Any = self._tree
        for part in (*start, *names):
            if is_interpolation(value):
                value = self._evaluate(found, value)
            step = _step(value, part)
            if step is None:
                raise self._missing(path, key, value, str(part))
            value = value[step]
            found = (*found, step)
        if path[: len(found)] == found and not is_interpolation(value):
            raise self._error(path, f"${{{key}}} contains this key itself", "write the value out")
        return self._resolve(found, value)

    def _missing(self, path: KeyPath, key: str, holder: Any, part: str) -> SettingsError:
        name = key.lstrip(".")
        if name in _ENDPOINT_KEYS:
            remedy = f"put {name} into env.yaml or pass ++{name}=…"
        else:
            remedy = f"set {name} in a YAML file or pass ++{name}=…"
            hint = did_you_mean(part, [str(k) for k in holder]) if isinstance(holder, dict) else ""
            remedy += f"; {hint}" if hint.startswith("did") else ""
        return self._error(path, f"${{{key}}} is not set", remedy)

    def _call(self, path: KeyPath, name: str, args: tuple[Any, ...]) -> Any:
        if name != "oc.env":
            raise self._error(path, f"${{{name}:…}} is not known", "only ${oc.env:VAR} and ${key} are")
        if not args or len(args) > 2 or not isinstance(args[0], str):
            raise self._error(path, "${oc.env:…} is not well formed", "write ${oc.env:VAR} or ${oc.env:VAR,default}")
        variable = args[0]
        if variable in self._environ:
            value = self._environ[variable]
            if is_secret_key(variable):
                self.secrets.add(value)
            return value
        if len(args) == 1:
            problem = f"the environment variable {variable} is not set"
            raise self._error(path, problem, f"export {variable}, or write ${{oc.env:{variable},default}}")
        return None if args[1] is None else str(args[1])

    def _error(self, path: KeyPath, problem: str, remedy: str) -> SettingsError:
        return SettingsError(self._place(path), dotted(path), problem, remedy)


def _step(value: Any, part: str | int) -> str | int | None:
    if isinstance(value, dict):
        return part if part in value else None
    if isinstance(value, list) and str(part).isdecimal() and int(part) < len(value):
        return int(part)
    return None
