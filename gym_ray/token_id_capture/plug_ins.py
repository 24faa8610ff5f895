"""Loads classes that settings name as ``module.path:ClassName``, makes one, and checks its methods (B128).

Errors name the key of the setting. No message shows the arguments of a class: they may hold credentials of a store.
What our own classes say of a place is free of them, and is shown.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gym_ray.errors import SettingsError, StorageError

__all__ = ["LINEAGE_METHODS", "SINK_METHODS", "SOURCE_METHODS", "check_plug_in", "load_plug_in", "missing_methods"]

SINK_METHODS: Final = ("put", "mark_incomplete", "close")
SOURCE_METHODS: Final = ("freeze", "drop", "close")
LINEAGE_METHODS: Final = ("resolve", "is_process_shared", "close")

_OURS: Final = "gym_ray."


def missing_methods(part: object, methods: Iterable[str]) -> list[str]:
    """Return those of ``methods`` that an object cannot be asked."""
    return [name for name in methods if not callable(getattr(part, name, None))]


def load_plug_in(key: str, target: str, kwargs: Mapping[str, Any], methods: Iterable[str]) -> Any:
    """Import a class, make one of it, and check that it has the methods of its protocol.

    Args:
        key: The key of the settings that names it; what it is made with stands under ``<key>_kwargs``.
        target: ``module.path:ClassName``.
        kwargs: What it is made with.
        methods: What it must be able to do.

    Raises:
        SettingsError: The target is no such text, cannot be imported or made, or lacks methods; a ValueError.
    """
    found = check_plug_in(key, target, kwargs)
    try:
        made = found(**kwargs)
    except Exception as error:  # boundary: a foreign constructor may raise anything; the cause stays attached
        said = f": {error}" if target.startswith(_OURS) and isinstance(error, SettingsError | StorageError) else ""
        problem = f"{target} cannot be made with these: {type(error).__name__}{said}"
        raise SettingsError("settings", f"{key}_kwargs", problem, _names(kwargs)) from error
    missing = missing_methods(made, methods)
    if missing:
        raise SettingsError("settings", key, f"{target} lacks {', '.join(missing)}", "name a class that has them")
    return made


def check_plug_in(key: str, target: str, kwargs: Mapping[str, Any]) -> Any:
    """Import a class and return it, if it can be called with these arguments; none is made.

    Args:
        key: The key of the settings that names it.
        target: ``module.path:ClassName``.
        kwargs: What it would be made with.

    Raises:
        SettingsError: The target is no such text or cannot be imported, or arguments are missing or not known to it;
            a ValueError.
    """
    found = _load(key, target)
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return found  # of a class that shows none, only making it can tell
    named = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    required = {one.name for one in parameters if one.name in named and one.default is one.empty}
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    missing = sorted(required - kwargs.keys())
    if missing:
        problem = f"{target} cannot be made: it needs {', '.join(missing)}"
        raise SettingsError("settings", f"{key}_kwargs", problem, _names(kwargs))
    unknown = [] if takes_any else sorted(map(str, kwargs.keys() - named))
    if unknown:
        problem = f"{target} cannot be made: it takes no argument {', '.join(unknown)}"
        remedy = f"it takes {', '.join(sorted(named))}" if named else "it takes none"
        raise SettingsError("settings", f"{key}_kwargs", problem, remedy)
    return found


def _load(key: str, target: str) -> Any:
    module_name, colon, class_name = target.partition(":")
    if not colon or not module_name or not class_name:
        raise SettingsError("settings", key, f"{target!r} names no class", "write module.path:ClassName")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # boundary: importing runs foreign code; the cause stays attached
        problem = f"{module_name} cannot be imported: {type(error).__name__}: {error}"
        raise SettingsError("settings", key, problem, "install it, or correct the name") from error
    found = getattr(module, class_name, None)
    if not callable(found):
        raise SettingsError("settings", key, f"{module_name} has no class {class_name}", "correct the name")
    return found


def _names(kwargs: Mapping[str, Any]) -> str:
    return f"given: {', '.join(sorted(map(str, kwargs)))}" if kwargs else "it was given none"
