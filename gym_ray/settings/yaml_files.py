"""Reads one YAML file and remembers the line of every key, so that a later complaint can name it. Writes one, too.

Scalars mean what they mean to OmegaConf: YAML 1.1, but ``1e3`` is a number and dates stay text. Text of a file is never
quoted in an error, for it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gym_ray.errors import SettingsError
from gym_ray.settings.problems import KeyPath

__all__ = ["Layer", "dump_yaml", "parse_yaml", "read_yaml"]

_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null", "merge")
)
_MAX_VALUES = 20_000  # aliases of aliases would otherwise grow without bound
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
)
_REPLACED_TAGS = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings of one source, and where in it they stand.

    Args:
        where: Path of the file, ``command line``, or another name of the source.
        tree: The settings, interpolations not resolved.
        lines: Line, counted from 1, by key path.
    """

    where: str
    tree: dict[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str | None:
        """Return ``file:line`` of a key, or None if this source does not have it."""
        value: Any = self.tree
        for part in path:
            known = part in value if isinstance(value, dict) else _is_position(value, part)
            if not known:
                return None
            value = value[part]
        line = self.lines.get(path)
        return self.where if line is None else f"{self.where}:{line}"


def _is_position(value: object, part: str | int) -> bool:
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


class _Loader(yaml.SafeLoader):
    """Safe YAML without dates and with plain exponents; a key that is given twice is an error."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and the shape are PyYAML's
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED_TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


class _Dumper(yaml.SafeDumper):
    """Quotes every text that ``_Loader`` would otherwise read as something else."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

    def ignore_aliases(self, _data: object) -> bool:
        return True


def dump_yaml(tree: dict[str, Any]) -> str:
    """Return YAML that ``parse_yaml`` reads as an equal tree; keys keep their order."""
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=False, default_flow_style=False)
    return text


def read_yaml(path: Path) -> Layer:
    """Return the settings in a YAML file; an empty file has none.

    Raises:
        SettingsError: The file is absent, cannot be read, or is not a YAML map with text keys.
    """
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise SettingsError(str(path), "", "no such file", "check the path") from None
    except UnicodeDecodeError as error:
        raise SettingsError(str(path), "", f"not UTF-8 at byte {error.start}", "save the file as UTF-8") from None
    except OSError as error:
        raise SettingsError(str(path), "", f"cannot be read: {error.strerror}", "name a readable file") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> Layer:
    """Return the settings in YAML text that came from ``where``.

    Raises:
        SettingsError: The text is not a YAML map with text keys.
    """
    try:
        loader = _Loader(text)
    except yaml.YAMLError:
        raise SettingsError(where, "", "holds characters that YAML does not allow", "save it as plain UTF-8") from None
    try:
        node = loader.get_single_node()
        lines: dict[KeyPath, int] = {}
        if node is not None:
            _collect_lines(node, (), lines, (), where)
        tree = loader.construct_document(node) if node is not None else None
    except SettingsError:
        raise
    except yaml.MarkedYAMLError as error:
        raise _bad_yaml(error, where) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise SettingsError(where, "", "not valid YAML", "see https://yaml.org for the syntax") from None
    finally:
        loader.dispose()
    if tree is None:
        return Layer(where, {})
    if not isinstance(tree, dict):
        raise SettingsError(where, "", f"holds a {type(tree).__name__}, not a map", "write `key: value` lines")
    return Layer(where, tree, lines)


def _bad_yaml(error: yaml.MarkedYAMLError, where: str) -> SettingsError:
    mark = error.problem_mark or error.context_mark
    place = where if mark is None else f"{where}:{mark.line + 1}"
    problem = error.problem or "syntax error"
    if isinstance(error, yaml.composer.ComposerError):
        problem = "an alias is not defined, an anchor is defined twice, or there is a second document"
    return SettingsError(place, "", f"not valid YAML: {problem}", "correct that line or the one before it")


def _collect_lines(
    node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], parents: tuple[int, ...], where: str
) -> None:
    place = f"{where}:{node.start_mark.line + 1}"
    if id(node) in parents:
        raise SettingsError(place, "", "an alias refers to what contains it", "write the value out")
    if node.tag not in _PLAIN_TAGS:
        raise SettingsError(place, "", f"the YAML tag {node.tag!r} is not used in settings", "write a plain value")
    if len(lines) > _MAX_VALUES:
        raise SettingsError(place, "", f"holds more than {_MAX_VALUES} values", "use fewer aliases of aliases")
    inside = (*parents, id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            lines[(*path, index)] = child.start_mark.line + 1
            _collect_lines(child, (*path, index), lines, inside, where)
    elif isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            line = key.start_mark.line + 1
            if key.tag != "tag:yaml.org,2002:str":
                raise SettingsError(f"{where}:{line}", "", "a key is not text", "put the key in quotes")
            lines[(*path, key.value)] = line
            _collect_lines(child, (*path, key.value), lines, inside, where)
