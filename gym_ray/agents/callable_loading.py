"""Finds the function that a callable agent is: ``module:function`` or ``path/file.py:function``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from gym_ray.errors import SettingsError

__all__ = ["load_callable"]


def load_callable(target: str, *, where: str = "settings", key: str = "") -> Callable[..., Any]:
    """Import and return what ``target`` names; a file is imported once a process.

    Args:
        target: ``package.module:function``, or ``path/to/file.py:function``; dots behind the colon reach attributes.
        where: File that the setting came from, for messages.
        key: Dotted key of the setting, for messages.

    Raises:
        SettingsError: The text has no such form, the module cannot be imported, or it has no such callable.
    """
    place, colon, attribute = target.rpartition(":")
    if not colon or not place or not attribute:
        remedy = "write package.module:function or path/file.py:function"
        raise SettingsError(where, key, f"{target!r} does not name a function", remedy)
    try:
        found: Any = _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # foreign code runs at import; whatever it raises is the setting's problem
        remedy = "" if Path(place).is_absolute() or not place.endswith(".py") else _ELSEWHERE
        raise SettingsError(where, key, f"cannot import {place}: {type(error).__name__}: {error}", remedy) from error
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise SettingsError(where, key, f"{place} has no {attribute!r}") from None
    if not callable(found):
        raise SettingsError(where, key, f"{target} is a {type(found).__name__}, not a function")
    function: Callable[..., Any] = found
    return function


_ELSEWHERE = "give an absolute path: workers of a running cluster look where it was started, a job's in its files"


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    name = f"gym_ray_agent_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, as an import statement does: dataclasses and pickle look their module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
