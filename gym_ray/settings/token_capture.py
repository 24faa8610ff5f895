"""The block ``token_id_capture``: whether exact tokens are captured, where they go, and what a run does with them.

An unknown key is refused even while capture is off, so that a misspelled switch is found at once. Settings that cannot
work together are refused before anything starts, in a fixed order (B126, B127).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from gym_ray.errors import SettingsError
from gym_ray.settings.capture import CapturePlace, directory_of
from gym_ray.settings.fields import FrozenModel, Name, Number, PositiveCount

__all__ = [
    "CONTROL_TOKEN_VARIABLE",
    "PLUG_IN_ARGUMENTS",
    "NonGeneratingRequest",
    "StagingSettings",
    "TokenCaptureSettings",
    "TokenIdCaptureConfig",
    "check_token_capture",
]

CONTROL_TOKEN_VARIABLE = "NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN"  # noqa: S105 - a variable's name, not a secret
"""Environment variable that holds the control bearer unless the block names another one."""

PLUG_IN_ARGUMENTS = frozenset({"sink_kwargs", "source_kwargs", "lineage_store_kwargs"})
"""Keys of the block under which stands what classes of the user's own are made with; credentials may be among it."""

_PLACE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*://.")

_BLOCK = "token_id_capture"
_METHOD = re.compile(r"[A-Za-z]+")
_PATTERN_CHARACTERS = frozenset("?#*{}")


def _method(value: str) -> str:
    if not _METHOD.fullmatch(value):
        raise ValueError("should be an HTTP method such as GET, in letters alone")
    return value.upper()


def _path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError("should begin with /")
    if _PATTERN_CHARACTERS & set(value):
        raise ValueError("should be one exact path: without a query, a fragment or the signs ? # * { }")
    return value


class NonGeneratingRequest(FrozenModel):
    """A request to a model server that makes the engine generate nothing, so it loses no tokens (B78, B129)."""

    method: Annotated[str, AfterValidator(_method)]
    path: Annotated[str, AfterValidator(_path)]


def _place(value: str) -> str:
    if not _PLACE.match(value):
        raise ValueError("should be an absolute path, or a URL such as s3://bucket/prefix")
    return value


class StagingSettings(FrozenModel):
    """Where the inference workers that a run hosts keep their tokens.

    Attributes:
        where: An absolute directory that all of them share, or the URL of an object store.
        partition: First part of the names of their segments.
        storage_options: What fsspec is given for a URL; credentials may be among it.
        timeout_s: A call that is not durable by then is answered, and is not captured.
    """

    where: Annotated[str, AfterValidator(_place)]
    partition: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] = "default"
    storage_options: dict[str, Any] = Field(default_factory=dict, repr=False)
    timeout_s: Annotated[float, Number, Field(gt=0)] = 30.0


class TokenIdCaptureConfig(FrozenModel):
    """Capture of exact tokens for training (B126).

    Attributes:
        enabled: Capture the calls of the agents that take part.
        all_agents: Every agent takes part; otherwise those with ``token_id_capture: true`` (B129).
        dir: Absolute directory of the token files; None puts them beside the captured model calls.
        sink: ``module.path:ClassName`` that keeps records in place of the files.
        sink_kwargs: What it is made with.
        source: ``module.path:ClassName`` that gives back what the sink kept.
        source_kwargs: What it is made with.
        lineage_store: ``module.path:ClassName`` that finds a call's parent; a sink needs one.
        lineage_store_kwargs: What it is made with.
        rebuild_response: Put the built trajectory into the rollout's record.
        training_rows: Also put compact training rows into the record: of the ``main`` chain, or of ``all`` chains, each
            with a verdict of its own. Not with ``external_staging``.
        retire_after_delivery: Remove a capture once the record that holds its tokens is durable; a masked one stays.
        allow_unresolved_continuations: Go without a lineage store: rollouts of more than one call are then masked.
        delta_records: Store only the part of a prompt that its parent lacks (W2).
        max_mask_fraction: Largest share of masked rollouts, 0 to 1; a run beyond it ends (B125). None has no bound.
        mask_fraction_min_samples: Rollouts before that share means anything.
        mask_fraction_window: Also look at this many last rollouts alone (W38).
        on_unproven_prefix: What becomes of a call whose engine was given its parent's tokens and did not prove that
            it used them: ``mark`` serves it and marks its rollout, ``fail`` fails the call (W35).
        external_staging: Inference workers keep the tokens themselves.
        external_staging_backend: What those workers are.
        staging: Where the workers that this run hosts itself keep them: those of ``local_model`` servers.
        control_auth_token_env: Environment variable that holds the bearer of their control routes: six characters or
            more, or it could not be kept out of evidence.
    """

    enabled: bool = False
    all_agents: bool = False
    dir: Path | None = None
    sink: Name | None = None
    sink_kwargs: dict[str, Any] = Field(default_factory=dict, repr=False)  # may hold credentials of a store
    source: Name | None = None
    source_kwargs: dict[str, Any] = Field(default_factory=dict, repr=False)
    lineage_store: Name | None = None
    lineage_store_kwargs: dict[str, Any] = Field(default_factory=dict, repr=False)
    rebuild_response: bool = True
    training_rows: Literal["none", "main", "all"] = "none"
    retire_after_delivery: bool = True
    allow_unresolved_continuations: bool = False
    delta_records: bool = True
    max_mask_fraction: Annotated[float, Number, Field(ge=0, le=1)] | None = None
    mask_fraction_min_samples: PositiveCount = 50
    mask_fraction_window: PositiveCount | None = None
    on_unproven_prefix: Literal["mark", "fail"] = "mark"
    external_staging: bool = False
    external_staging_backend: Literal["vllm_worker", "megatron_worker"] = "vllm_worker"
    staging: StagingSettings | None = None
    control_auth_token_env: Name = CONTROL_TOKEN_VARIABLE

    @model_validator(mode="after")
    def _fits_together(self) -> TokenIdCaptureConfig:
        if self.external_staging and not self.enabled:
            raise ValueError("external_staging is only for captured calls: set enabled to true as well")
        if self.external_staging and self.rebuild_response:
            raise ValueError("external_staging keeps the tokens with the workers: set rebuild_response to false")
        if self.external_staging and self.training_rows != "none":
            raise ValueError(
                "external_staging keeps the tokens with the workers, so that no record can hold training rows: set "
                "training_rows to none, and read the rows from the staging store"
            )
        if self.external_staging_backend == "megatron_worker" and not self.external_staging:
            raise ValueError("external_staging_backend megatron_worker works with external_staging: true alone")
        if self.staging is not None and not self.external_staging:
            raise ValueError("staging is where inference workers keep tokens: set external_staging to true as well")
        if self.mask_fraction_window is not None and self.mask_fraction_window < self.mask_fraction_min_samples:
            raise ValueError("mask_fraction_window should be at least mask_fraction_min_samples")
        return self

    def resolved_dir(self, capture_dir: Path | str | None) -> Path | None:
        """Return where token files would lie: the block's own directory, else that of model calls if it is one."""
        return self.dir if self.dir is not None else directory_of(capture_dir)

    def dir_in_use(self, capture_dir: Path | str | None) -> Path | None:
        """Return where token files do lie, or the ledger of tokens that the workers keep.

        None when capture is off, or the block names a class that keeps them elsewhere.
        """
        elsewhere = self.lineage_store if self.external_staging else self.sink
        return self.resolved_dir(capture_dir) if self.enabled and elsewhere is None else None


def check_token_capture(
    config: TokenIdCaptureConfig,
    capture_dir: Path | str | None,
    *,
    sink_installed: bool = False,
    lineage_installed: bool = False,
    where: str = "settings",
) -> list[str]:
    """Check the block against what lies around it, in the order of B127.

    Args:
        config: The block.
        capture_dir: The run's ``model_call_capture_dir``, whether or not model calls are captured.
        sink_installed: A sink was installed in this process.
        lineage_installed: A lineage store was.
        where: Where the block came from, for messages.

    Returns:
        What works and is likely not meant, one sentence each.

    Raises:
        SettingsError: It cannot work; key, problem and remedy are named.
    """
    if not config.enabled:
        if config == TokenIdCaptureConfig():
            return []
        return [f"{_BLOCK} has settings and is off; set {_BLOCK}.enabled to true to capture tokens"]
    if config.sink is not None or (sink_installed and not config.external_staging):
        return _check_sink(config, where, lineage_installed) + _unused_by_workers(config)
    directory = config.resolved_dir(capture_dir)
    places = f"{_BLOCK}.dir or model_call_capture_dir" if capture_dir is None else f"{_BLOCK}.dir to a directory"
    if directory is None and config.external_staging and config.lineage_store is None:
        remedy = f"set {places}, or name a ledger as {_BLOCK}.lineage_store"
        raise SettingsError(where, f"{_BLOCK}.dir", "the ledger of staged calls has nowhere to go", remedy)
    if directory is None and config.rebuild_response:
        remedy = f"set {places}, name a sink, or switch rebuild_response off"
        raise SettingsError(where, f"{_BLOCK}.dir", "token capture has nowhere to go", remedy)
    if directory is not None and not directory.is_absolute():
        key = f"{_BLOCK}.dir" if config.dir is not None else "model_call_capture_dir"
        raise SettingsError(where, key, f"{str(directory)!r} is not absolute", "servers and collector must share it")
    return _unused_by_workers(config)


def _unused_by_workers(config: TokenIdCaptureConfig) -> list[str]:
    """Return what has no meaning when inference workers keep the tokens."""
    if not config.external_staging:
        return []
    unused = [name for name in ("sink", "source") if getattr(config, name) is not None]
    return [f"{_BLOCK}.{name} is not used: the inference workers keep the tokens" for name in unused]


def _check_sink(config: TokenIdCaptureConfig, where: str, lineage_installed: bool) -> list[str]:
    sink = "the installed sink" if config.sink is None else f"the sink {config.sink}"
    remarks = []
    if config.dir is not None:
        remarks.append(f"{_BLOCK}.dir is not used: {sink} keeps the records")
    return remarks + _check_lineage(config, sink, where, lineage_installed)


def _check_lineage(config: TokenIdCaptureConfig, sink: str, where: str, lineage_installed: bool) -> list[str]:
    if config.lineage_store is not None or lineage_installed:
        return []
    if config.allow_unresolved_continuations:
        return [f"{sink} has no lineage store: rollouts of more than one call will be masked"]
    raise SettingsError(
        where,
        f"{_BLOCK}.lineage_store",
        f"is not set, so that no call behind {sink} would find its parent",
        "name a class, or set allow_unresolved_continuations to true and lose rollouts of more than one call",
    )


class TokenCaptureSettings(BaseModel):
    """The block and the directory it shares with model calls, read from settings whose other keys are ignored (B126).

    For processes that get a whole configuration and start nothing but token capture. What was installed in a process
    is not known on this floor; a validation context says it: ``{"sink_installed": …, "lineage_installed": …}``.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True, protected_namespaces=())

    token_id_capture: TokenIdCaptureConfig = Field(default_factory=TokenIdCaptureConfig)
    model_call_capture_dir: CapturePlace | None = None

    @model_validator(mode="after")
    def _fits_around(self, info: ValidationInfo) -> TokenCaptureSettings:
        check_token_capture(self.token_id_capture, self.model_call_capture_dir, **(info.context or {}))
        return self
