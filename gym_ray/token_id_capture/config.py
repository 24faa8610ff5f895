"""From settings to the parts of token capture that a process holds (B76, B126-B130).

What settings name comes before what a process installed, and that before files in the capture directory. Everything is
made once, at start-up, so that a wrong name ends a start and not a rollout.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from gym_ray.errors import SettingsError
from gym_ray.settings.problems import MIN_SECRET_CHARS
from gym_ray.settings.token_capture import (
    NonGeneratingRequest,
    TokenCaptureSettings,
    TokenIdCaptureConfig,
    check_token_capture,
)
from gym_ray.token_id_capture.call_capture import TokenCapture
from gym_ray.token_id_capture.external_staging import LEDGER_METHODS, ExternalStaging, HostedWorker
from gym_ray.token_id_capture.kept_failures import FailureKeepingLedger
from gym_ray.token_id_capture.lineage import LineageResolver
from gym_ray.token_id_capture.plug_ins import LINEAGE_METHODS, SINK_METHODS, SOURCE_METHODS, load_plug_in
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot, TokenSink, TokenSource
from gym_ray.token_id_capture.resolution.resolvers import FileLineageResolver
from gym_ray.token_id_capture.sink import (
    installed_lineage_store,
    installed_token_sink,
    installed_token_source,
    process_health,
)
from gym_ray.token_id_capture.staging.ledger.file_ledger import FileCaptureLedger
from gym_ray.token_id_capture.staging.ledger.protocol import CaptureLedger
from gym_ray.token_id_capture.store import TokenCaptureStore

__all__ = [
    "NonGeneratingRequest",
    "TokenCaptureSettings",
    "TokenIdCaptureConfig",
    "agent_takes_part",
    "build_external_staging",
    "build_ledger",
    "build_lineage_store",
    "build_sink",
    "build_source",
    "build_token_capture",
    "build_token_source",
    "control_auth_token",
    "read_token_capture",
]

_log = logging.getLogger(__name__)
_BLOCK: Final = "token_id_capture"
_TIMEOUT_S: Final = 30.0


def read_token_capture(settings: Mapping[str, Any]) -> TokenCaptureSettings:
    """Read the block and the shared directory out of whole settings, given what is installed in this process (B127).

    Raises:
        ValidationError: They cannot work; a ValueError.
    """
    installed = {
        "sink_installed": installed_token_sink() is not None,
        "lineage_installed": installed_lineage_store() is not None,
    }
    return TokenCaptureSettings.model_validate(settings, context=installed)


def build_sink(config: TokenIdCaptureConfig) -> TokenSink | None:
    """Make the sink that the block names; None when it names none or capture is off (B128).

    Raises:
        SettingsError: It cannot be loaded or made, or is no sink; a ValueError.
    """
    if not config.enabled or config.sink is None:
        return None
    return cast("TokenSink", load_plug_in(f"{_BLOCK}.sink", config.sink, config.sink_kwargs, SINK_METHODS))


def build_source(config: TokenIdCaptureConfig) -> TokenSource | None:
    """Make the source that the block names; as :func:`build_sink`."""
    if not config.enabled or config.source is None:
        return None
    return cast("TokenSource", load_plug_in(f"{_BLOCK}.source", config.source, config.source_kwargs, SOURCE_METHODS))


def build_lineage_store(config: TokenIdCaptureConfig) -> LineageResolver | None:
    """Make the lineage store that the block names; as :func:`build_sink`."""
    if not config.enabled or config.lineage_store is None:
        return None
    made = load_plug_in(f"{_BLOCK}.lineage_store", config.lineage_store, config.lineage_store_kwargs, LINEAGE_METHODS)
    return cast("LineageResolver", made)


def build_token_capture(
    config: TokenIdCaptureConfig, *, capture_dir: Path | None, timeout_s: float = _TIMEOUT_S, workers: int = 1
) -> TokenCapture | None:
    """Make what a model server captures tokens with (B76); None when capture is off, or the workers keep the tokens.

    The caller closes it, and with it every part that was made here; installed parts stay with who installed them.

    Args:
        config: The block.
        capture_dir: The run's ``model_call_capture_dir``.
        timeout_s: Longest that a sink or a lineage store may take for one call.
        workers: Processes that serve the same model, this one included.

    Raises:
        SettingsError: The parts cannot work together, or one cannot be made.
        CaptureError: Files in the token directory cannot be created, synced or locked.
    """
    if not config.enabled or config.external_staging:
        return None
    installed_sink, installed_lineage = installed_token_sink(), installed_lineage_store()
    remarks = check_token_capture(
        config,
        capture_dir,
        sink_installed=installed_sink is not None,
        lineage_installed=installed_lineage is not None,
    )
    for remark in remarks:
        _log.warning("%s", remark)
    named_lineage, named_sink = build_lineage_store(config), build_sink(config)
    sink = named_sink or installed_sink or _file_store(config, capture_dir, timeout_s)
    files = None
    if isinstance(sink, TokenCaptureStore):
        sink.check()
        files = FileLineageResolver(sink)
    resolver = named_lineage or installed_lineage or files
    _check_workers(resolver, workers)
    return TokenCapture(
        sink,
        resolver,
        delta_records=config.delta_records,
        timeout_s=timeout_s,
        fail_unproven_prefix=config.on_unproven_prefix == "fail",
        owns_sink=sink is not installed_sink,
        owns_resolver=resolver is not installed_lineage,
        health=process_health(),
    )


def build_ledger(config: TokenIdCaptureConfig, capture_dir: Path | None) -> CaptureLedger:
    """Make the ledger of calls whose tokens the workers keep: the lineage store that the block names, else files.

    Raises:
        SettingsError: It cannot be made, it forgets rows, or files have no directory (C203, C240).
        CaptureError: The directory cannot be created, synced or locked.
    """
    ledger = _named_ledger(config)
    if ledger is None:
        directory = config.dir_in_use(capture_dir)
        if directory is None:
            remedy = f"set {_BLOCK}.dir or model_call_capture_dir, or name a ledger as {_BLOCK}.lineage_store"
            raise SettingsError("settings", f"{_BLOCK}.dir", "the ledger of staged calls has nowhere to go", remedy)
        ledger = FileCaptureLedger(directory)
    if ledger.evicts():
        problem = f"{type(ledger).__name__} forgets rows, and a call whose row is gone cannot be trained on"
        raise SettingsError("settings", f"{_BLOCK}.lineage_store", problem, "use a ledger that keeps every row")
    return ledger


def build_external_staging(
    config: TokenIdCaptureConfig,
    *,
    capture_dir: Path | None,
    control_token: str | None,
    timeout_s: float = _TIMEOUT_S,
    workers: int = 1,
    hosted: HostedWorker | None = None,
) -> ExternalStaging | None:
    """Make what a model server needs when its workers keep the tokens (C240); None when they do not.

    The caller closes it.

    Args:
        config: The block.
        capture_dir: The run's ``model_call_capture_dir``.
        control_token: What :func:`control_auth_token` found where the run was started.
        timeout_s: Longest that the ledger may take for one call.
        workers: Processes that serve the same model, this one included.
        hosted: The worker, where the run hosts it.

    Raises:
        SettingsError: There is no token, or a short one, or the ledger cannot be what it has to be.
        CaptureError: Files of the ledger cannot be created, synced or locked.
    """
    if not config.enabled or not config.external_staging:
        return None
    if not control_token:
        problem = f"the token of the control routes is missing; {config.control_auth_token_env} should hold it"
        raise SettingsError("environment", f"{_BLOCK}.control_auth_token_env", problem, "set it where the run starts")
    _check_length(config.control_auth_token_env, control_token)
    ledger = build_ledger(config, capture_dir)
    _check_workers(ledger, workers)
    kept = FailureKeepingLedger(ledger, timeout_s=timeout_s)
    return ExternalStaging(kept, config.external_staging_backend, control_token, worker=hosted)


def build_token_source(config: TokenIdCaptureConfig, capture_dir: Path | None) -> TokenSource | None:
    """Return where a collector reads captures; None when capture is off or nothing is rebuilt.

    Whoever gets it closes it; closing leaves an installed source open (B58).

    Raises:
        SettingsError: Responses are to be rebuilt, and there is neither a source nor a directory (B125).
        CaptureError: Files in the token directory cannot be created, synced or locked.
    """
    if not config.enabled or not config.rebuild_response:
        return None
    named, installed = build_source(config), installed_token_source()
    if named is not None:
        return named
    if installed is not None:
        return _Borrowed(installed)
    store = None if installed_token_sink() else _file_store(config, capture_dir)
    if store is None:
        problem = "is not set, so that responses cannot be rebuilt from what the sink keeps"
        remedy = "name a class, install a source in the collector, or set rebuild_response to false"
        raise SettingsError("settings", f"{_BLOCK}.source", problem, remedy)
    store.check()
    return store


def agent_takes_part(settings: Mapping[str, Any], agent_name: str | None) -> bool:
    """Return whether whole settings let an agent's calls be captured for training (B129).

    Raises:
        ValidationError: The block is wrong; a ValueError.
    """
    config = TokenIdCaptureConfig.model_validate(settings.get(_BLOCK, {}))
    if not config.enabled or config.all_agents:
        return config.enabled
    server = settings.get(agent_name) if agent_name else None
    agents = server.get("responses_api_agents") if isinstance(server, Mapping) else None
    options = agents.values() if isinstance(agents, Mapping) else ()
    return any(isinstance(option, Mapping) and option.get(_BLOCK) is True for option in options)


def control_auth_token(config: TokenIdCaptureConfig, environ: Mapping[str, str]) -> str:
    """Return the bearer of the workers' control routes (B130).

    Args:
        config: The block.
        environ: Environment variables.

    Raises:
        SettingsError: The variable is not set, is empty, or holds too few characters; a ValueError.
    """
    name = config.control_auth_token_env
    token = environ.get(name, "")
    if not token:
        problem = f"the environment variable {name} is not set or empty"
        raise SettingsError("environment", f"{_BLOCK}.control_auth_token_env", problem, f"set {name} to the token")
    _check_length(name, token)
    return token


def _check_length(name: str, token: str) -> None:
    """Refuse a token that is too short to be told from other text where evidence is redacted (B67)."""
    if len(token) < MIN_SECRET_CHARS:
        problem = f"the token in {name} has {len(token)} characters, too few to be kept out of evidence"
        remedy = f"use {MIN_SECRET_CHARS} or more, such as `openssl rand -hex 16` gives"
        raise SettingsError("environment", f"{_BLOCK}.control_auth_token_env", problem, remedy)


class _Borrowed:
    """An installed source: everything is asked of it, and closing leaves it open."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        return await self._source.freeze(rollout_id)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        return await self._source.drop(rollout_id, snapshot_id=snapshot_id, version=version)

    async def close(self) -> None:
        """Leave it to who installed it."""


def _file_store(
    config: TokenIdCaptureConfig, capture_dir: Path | None, timeout_s: float = _TIMEOUT_S
) -> TokenCaptureStore | None:
    directory = config.dir_in_use(capture_dir)
    return None if directory is None else TokenCaptureStore(directory, timeout_s=timeout_s)


def _named_ledger(config: TokenIdCaptureConfig) -> CaptureLedger | None:
    if config.lineage_store is None:
        return None
    made = load_plug_in(f"{_BLOCK}.lineage_store", config.lineage_store, config.lineage_store_kwargs, LEDGER_METHODS)
    return cast("CaptureLedger", made)


def _check_workers(resolver: LineageResolver | CaptureLedger | None, workers: int) -> None:
    if workers > 1 and resolver is not None and not resolver.is_process_shared():
        problem = f"{type(resolver).__name__} sees the calls of one process, and {workers} serve the model"
        raise SettingsError("settings", f"{_BLOCK}.lineage_store", problem, "use one that processes share")
