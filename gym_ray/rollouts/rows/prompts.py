"""Builds the input of a row from a template and the row's own fields (D12).

A template is YAML with ``user`` and perhaps ``system``. ``{field}`` stands for a field of the row, and
``{outer.inner}`` for one inside another; texts go in as they are, everything else as JSON. ``{{`` and ``}}`` stand for
braces. What a field holds is never looked at for placeholders again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import SettingsError
from gym_ray.settings.yaml_files import read_yaml

__all__ = ["PromptTemplate", "read_prompt_config"]

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_FIELD = re.compile(r"[^\s.{}]+(\.[^\s.{}]+)*")


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """How the input of every row is built.

    Attributes:
        user: Template of the question.
        system: Template of what comes before it, None for nothing.

    Raises:
        ValueError: A template has a brace that belongs to no placeholder, or a placeholder without a field.
    """

    user: str
    system: str | None = None

    def __post_init__(self) -> None:
        for name in ("system", "user"):
            text = getattr(self, name)
            for match in _TOKEN.finditer(text or ""):
                if match[0] in "{}" or (match[1] is not None and not _FIELD.fullmatch(match[1])):
                    problem = (
                        f"{match[0]!r} is no placeholder; write {{field}} for a field of the row, {{{{ for a brace"
                    )
                    raise ValueError(f"{name}: {problem}")

    def items(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the input items for a row.

        Raises:
            KeyError: The row lacks a field; the argument is its name.
        """
        texts = (("system", self.system), ("user", self.user))
        return [{"role": role, "content": _filled(text, row)} for role, text in texts if text is not None]


def _filled(template: str, row: Mapping[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        found = _field(row, match[1])
        return found if isinstance(found, str) else exact_json.dumps(found).decode("utf-8", "surrogatepass")

    return _TOKEN.sub(value, template)


def _field(row: Mapping[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    found: Any = row
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise KeyError(name)
        found = found[part]
    return found


def read_prompt_config(path: Path) -> PromptTemplate:
    """Read a template from its YAML file.

    Raises:
        SettingsError: The file cannot be read or holds no template.
    """
    layer = read_yaml(path)
    unknown = [key for key in layer.tree if key not in ("user", "system")]
    if unknown:
        raise SettingsError(
            layer.place((unknown[0],)) or layer.where, unknown[0], "unknown key", "known are user, system"
        )
    user, system = layer.tree.get("user"), layer.tree.get("system")
    for name, text in (("user", user), ("system", system)):
        if not isinstance(text, str) and (name == "user" or text is not None):
            problem = "required, but not set" if text is None else "is not a text"
            raise SettingsError(layer.place((name,)) or layer.where, name, problem, f"write {name}: and the text")
    try:
        return PromptTemplate(str(user), system)
    except ValueError as error:
        name, _, problem = str(error).partition(": ")
        raise SettingsError(layer.place((name,)) or layer.where, name, problem) from error
