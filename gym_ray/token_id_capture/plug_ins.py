"""Loads classes that settings name as ``module.path:ClassName``, makes one, and checks its methods (B128).

Errors name the key of the setting. No message shows the arguments of a class: they may hold credentials of a store.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gym_ray.errors import SettingsError

__all__ = ["LINEAGE_METHODS", "SINK_METHODS", "SOURCE_METHODS", "load_plug_in", "missing_methods"]

SINK_METHODS: Final = ("put", "mark_incomplete", "close")
SOURCE_METHODS: Final = ("freeze", "drop", "close")
LINEAGE_METHODS: Final = ("resolve", "is_process_shared", "close")


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
    found = _load(key, target)
    try:
        made = found(**kwargs)
    except Exception as error:  # boundary: a foreign constructor may raise anything; the cause stays attached
        problem = f"{target} cannot be made with these: {type(error).__name__}"
        raise SettingsError("settings", f"{key}_kwargs", problem, _names(kwargs)) from error
    missing = missing_methods(made, methods)
    if missing:
        raise SettingsError("settings", key, f"{target} lacks {', '.join(missing)}", "name a class that has them")
    return made


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
