"""Puts the sources of the settings together: YAML files, ``env.yaml``, the command line (D127).

From low to high: the files of ``config_paths`` in listed order, each over what it includes; ``env.yaml``; the command
line. Every value remembers where it came from. What the values mean is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_ray.errors import SettingsError
from gym_ray.settings.assets import ASSETS_ROOT
from gym_ray.settings.interpolation import Interpolator
from gym_ray.settings.overrides import (
    COMMAND_LINE,
    Action,
    Override,
    apply_overrides,
    deep_merge,
    parse_override,
)
from gym_ray.settings.problems import MIN_SECRET_CHARS, KeyPath, combine, dotted, is_secret_key
from gym_ray.settings.yaml_files import Layer, read_yaml

__all__ = ["Document", "compose"]

_PATHS = "config_paths"


@dataclass(frozen=True, slots=True)
class Document:
    """Merged settings with everything filled in, and where each came from.

    Args:
        tree: The settings, without ``config_paths``.
        layers: The sources, low to high.
        files: Every YAML file that was read for ``config_paths``, listed ones first.
        secrets: Texts that must not be shown.
    """

    tree: dict[str, Any]
    layers: tuple[Layer, ...]
    files: tuple[Path, ...] = ()
    secrets: frozenset[str] = frozenset()

    def place(self, path: KeyPath) -> str:
        """Return ``file:line`` or ``command line`` for a key, or for the nearest key above it that was given."""
        for length in range(len(path), 0, -1):
            for layer in reversed(self.layers):
                found = layer.place(path[:length])
                if found is not None:
                    return found
        return "settings"

    @staticmethod
    def of(layers: Sequence[Layer], environ: Mapping[str, str], files: Sequence[Path] = ()) -> Document:
        """Merge layers, low to high, and fill in every interpolation.

        Raises:
            SettingsError: A value is still ``???`` or an interpolation leads nowhere; every such place has its line.
        """
        merged: dict[str, Any] = {}
        for layer in layers:
            merged = deep_merge(merged, layer.tree)
        return _finish(merged, layers, environ, files)


def compose(
    config_paths: Sequence[str | Path],
    overrides: Sequence[str],
    *,
    env_file: Path | None,
    environ: Mapping[str, str],
) -> Document:
    """Read and merge all sources.

    Args:
        config_paths: Files, as if given by ``+config_paths=[…]`` in front of ``overrides``.
        overrides: Command-line tokens.
        env_file: The file with credentials; None means ``env.yaml`` in the working directory, if it is there.
        environ: What ``${oc.env:VAR}`` reads.

    Raises:
        SettingsError: A source cannot be read, an override is wrong, a value is missing.
    """
    tokens = [parse_override(token) for token in overrides]
    if config_paths:
        tokens.insert(0, Override(Action.ADD, (_PATHS,), [str(path) for path in config_paths]))
    path_tokens = [token for token in tokens if token.path[0] == _PATHS]
    env = _read_env(env_file)
    env_paths = {_PATHS: env.tree[_PATHS]} if _PATHS in env.tree else {}
    _, own_paths = apply_overrides(env_paths, path_tokens)
    source = Layer(COMMAND_LINE, own_paths) if own_paths else env
    near = Path() if own_paths else Path(env.where).parent
    reader = _IncludeReader(environ)
    files = reader.layers(source, near)

    merged: dict[str, Any] = {}
    for layer in (*files, env):
        merged = deep_merge(merged, _without_paths(layer.tree))
    merged, own = apply_overrides(merged, [token for token in tokens if token.path[0] != _PATHS])
    return _finish(merged, [*files, env, Layer(COMMAND_LINE, own)], environ, reader.files)


def _finish(
    merged: dict[str, Any], layers: Sequence[Layer], environ: Mapping[str, str], files: Sequence[Path]
) -> Document:
    raw = Document(merged, tuple(layers))
    unset = [
        SettingsError(raw.place(path), dotted(path), "is ??? (not set)", f"give a value: ++{dotted(path)}=…")
        for path, value in _leaves((), merged)
        if value == "???"
    ]
    if unset:
        raise combine(unset)
    interpolator = Interpolator(merged, environ, raw.place)
    tree = interpolator.resolve()
    if interpolator.mistakes:
        raise combine(interpolator.mistakes)
    secrets = {value for path, value in _leaves((), tree) if any(is_secret_key(str(part)) for part in path)}
    long = {s for s in secrets | interpolator.secrets if isinstance(s, str) and len(s) >= MIN_SECRET_CHARS}
    return Document(tree, tuple(layers), tuple(files), frozenset(long))


def _without_paths(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key != _PATHS}


def _leaves(path: KeyPath, value: Any) -> list[tuple[KeyPath, Any]]:
    if isinstance(value, dict):
        return [leaf for key, child in value.items() for leaf in _leaves((*path, key), child)]
    if isinstance(value, list):
        return [leaf for index, child in enumerate(value) for leaf in _leaves((*path, index), child)]
    return [(path, value)]


def _read_env(env_file: Path | None) -> Layer:
    if env_file is not None:
        return read_yaml(env_file)
    default = Path("env.yaml")
    return read_yaml(default) if default.exists() else Layer(str(default), {})


class _IncludeReader:
    """Reads files and what they include: included files come before the file that names them.

    A file that is named several times counts once, at its first place; a file that is listed at the top counts there
    and not where another file includes it, so that the order of the list holds.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._read: dict[Path, Layer] = {}
        self._done: dict[Path, Layer] = {}

    @property
    def files(self) -> list[Path]:
        """Every file that was read, the listed ones first."""
        return [Path(layer.where) for layer in self._read.values()]

    def layers(self, source: Layer, near: Path) -> list[Layer]:
        """Return one layer a file, low to high."""
        listed = self._paths(source, near)
        for path in listed:
            self._read[path.resolve()] = read_yaml(path)
        for path in listed:
            self._visit(path, (), frozenset(other.resolve() for other in listed))
        return list(self._done.values())

    def _visit(self, path: Path, parents: tuple[Path, ...], listed: frozenset[Path]) -> None:
        real = path.resolve()
        circular = [parent.resolve() for parent in parents]
        if real in circular:
            circle = " -> ".join(str(p) for p in (*parents[circular.index(real) :], path))
            raise SettingsError(str(parents[-1]), _PATHS, f"files include each other: {circle}", "remove one of them")
        layer = self._read.get(real) or read_yaml(path)
        self._read[real] = layer
        for included in self._paths(layer, path.parent):
            if included.resolve() not in self._done:
                self._visit(included, (*parents, path), listed)
        if real not in self._done and not (parents and real in listed):
            self._done[real] = layer

    def _paths(self, layer: Layer, near: Path) -> list[Path]:
        if layer.tree.get(_PATHS) is None:
            return []
        place = layer.place((_PATHS,)) or layer.where
        names = layer.tree[_PATHS]
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise SettingsError(place, _PATHS, "is not a list of file names", "write [a.yaml] or [a.yaml,b.yaml]")
        interpolator = Interpolator(layer.tree, self._environ, lambda path: layer.place(path) or layer.where)
        resolved = interpolator.resolve()[_PATHS]
        bad = [mistake for mistake in interpolator.mistakes if mistake.key.startswith(_PATHS)]
        if bad:
            raise combine(bad)
        return [_locate(name, near, layer.place((_PATHS, i)) or place) for i, name in enumerate(resolved)]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a directory that may not be searched, a name that is too long or holds NUL
        return False


def _locate(name: str, near: Path, place: str) -> Path:
    """Look beside the file that names it, then in the working directory, then among the files that ship."""
    candidates = [root / name for root in dict.fromkeys((near, Path(), ASSETS_ROOT))]
    for candidate in candidates:
        if _is_file(candidate):
            return candidate
    looked = ", ".join(str(candidate.absolute()) for candidate in candidates if not Path(name).is_absolute())
    remedy = f"looked for {looked}" if looked else "check the path"
    raise SettingsError(place, _PATHS, f"there is no file {name!r}", remedy)
