"""What servers and collector must agree on about capture when they are two terminals (D130).

A setting that only one side has is silent: calls go uncaptured, records wait for tokens that lie elsewhere. So whatever
servers act on is told by their head, and a collector that was told otherwise does not start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.errors import SettingsError
from gym_ray.settings import RunSettings

__all__ = ["capture_differences", "capture_settings"]

_BLOCK: Final = "token_id_capture"
_ENABLED: Final = f"{_BLOCK}.enabled"
_SINK: Final = f"{_BLOCK}.sink"
_DIRECTORY: Final = f"{_BLOCK}.dir"
_LINEAGE: Final = f"{_BLOCK}.lineage_store"
_TOLD: Final = ("all_agents", "sink", "lineage_store", "delta_records", "on_unproven_prefix", "external_staging")


def capture_settings(settings: RunSettings) -> dict[str, Any]:
    """Return the capture settings that servers act on, by their dotted keys; JSON values."""
    calls, block = settings.capture_location, settings.token_id_capture
    found: dict[str, Any] = {
        "observability_enabled": settings.observability_enabled,
        "model_call_capture_dir": str(calls) if calls else None,
        _ENABLED: block.enabled,
    }
    if block.enabled:
        found |= {f"{_BLOCK}.{name}": getattr(block, name) for name in _TOLD}
        found[_DIRECTORY] = str(settings.token_dir) if settings.token_dir else None
    return found


def capture_differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str) -> list[SettingsError]:
    """Return what differs, one error for each setting; what follows from another difference is left out.

    Args:
        ours: :func:`capture_settings` of here.
        theirs: The same of the servers.
        where: Where those servers are asked.
    """
    different = {key for key in {**theirs, **ours} if ours.get(key) != theirs.get(key)}
    return [
        SettingsError(
            "command line",
            key,
            f"is {_shown(ours.get(key))} here and {_shown(theirs.get(key))} at the servers of {where}",
            f"pass ++{key}={_shown(theirs.get(key))} here, or start the servers with the value of here",
        )
        for key in {**theirs, **ours}
        if key in different and not different & _causes(key)
    ]


def _causes(key: str) -> set[str]:
    """Return the settings that bring this one with them."""
    if key == "model_call_capture_dir":
        return {"observability_enabled"}
    if not key.startswith(f"{_BLOCK}.") or key == _ENABLED:
        return set()
    return {_ENABLED, _SINK} if key in (_DIRECTORY, _LINEAGE) else {_ENABLED}


def _shown(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
