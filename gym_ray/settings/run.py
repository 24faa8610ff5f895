"""The settings of one run, checked and frozen (A126 to A129, D123).

A run's settings travel: they pickle into actors, and their YAML is what the head server serves. Secrets show neither
in ``repr`` nor in redacted YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from gym_ray.errors import SettingsError
from gym_ray.settings.agent_options import AgentOptions
from gym_ray.settings.capture_redaction import CaptureRedaction
from gym_ray.settings.fields import (
    Count,
    FrozenModel,
    HttpUrl,
    Name,
    Port,
    PositiveCount,
    PositiveSeconds,
    Seconds,
)
from gym_ray.settings.interpolation import escape_interpolation
from gym_ray.settings.problems import MIN_SECRET_CHARS, did_you_mean, is_secret_key
from gym_ray.settings.server_options import ServerType
from gym_ray.settings.servers import ServerSettings
from gym_ray.settings.token_capture import PLUG_IN_ARGUMENTS, TokenIdCaptureConfig
from gym_ray.settings.yaml_files import dump_yaml

__all__ = ["REDACTED", "CaptureSettings", "HeadServer", "RunSettings"]

REDACTED = "**********"
"""Stands for a secret in redacted YAML."""


class CaptureSettings(BaseModel):
    """Whether model calls are captured, and where (A126 to A128). The only reading of the two keys (A129).

    Attributes:
        observability_enabled: Capture every model call.
        model_call_capture_dir: Absolute directory that model servers and collector share; not looked at when off.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True, protected_namespaces=())

    observability_enabled: bool = False
    model_call_capture_dir: Path | None = None

    @model_validator(mode="after")
    def _check_directory(self) -> CaptureSettings:
        if not self.observability_enabled:
            return self
        if self.model_call_capture_dir is None:
            raise ValueError("model_call_capture_dir is required when observability_enabled is true")
        if not self.model_call_capture_dir.is_absolute():
            raise ValueError("model_call_capture_dir must be an absolute path when observability_enabled is true")
        return self

    @property
    def capture_dir(self) -> Path | None:
        """The directory if capture is on, else None."""
        return self.model_call_capture_dir if self.observability_enabled else None


class HeadServer(FrozenModel):
    """Where ``env start`` can be asked about a run (D129)."""

    host: Name = "127.0.0.1"
    port: Port = 11000


def _repeats(value: Any) -> Any:
    counts = value.values() if isinstance(value, Mapping) else [value]
    for count in counts:
        text = str(count) if isinstance(count, int | str) and not isinstance(count, bool) else ""
        if not text.isascii() or not text.isdecimal() or int(text) < 1:
            raise ValueError("should be a whole number from 1 up, or a map from agent name to such a number")
    return value


def _none_is_one(value: Any) -> Any:
    return 1 if value is None else _repeats(value)


def _zero_is_none(value: Any) -> Any:
    return None if value == 0 and not isinstance(value, bool) else value


class RunSettings(CaptureSettings):
    """Everything that a run was told.

    Attributes:
        capture_timeout_s: Longest that one call's capture may hold back its answer.
        capture_redaction: What is taken out of captures besides the run's own credentials.
        token_id_capture: Whether exact tokens are captured for training, and what becomes of them (B126).
        servers: Servers by name.
        agent_name: The agent of every row, over what the rows say (D13).
        input_jsonl_fpath: Rows to run.
        output_jsonl_fpath: Where finished rollouts go.
        limit: Rows to take from the input; None takes all (0 in a file means the same, D7).
        num_repeats: Rollouts per row, or by agent name with ``_default`` (D9).
        num_samples_in_parallel: Bound on rollouts that run at the same time.
        interleave_repeats: Run the first repeat of every row before the second of any (D11).
        responses_create_params: Laid over each row's own, at the top level only (D12).
        run_timeout_s: Longest that one rollout may take; None has no bound.
        num_rollout_workers: Worker processes; None lets the cluster choose.
        head_server: Where the run can be found.
        start_timeout_s: Longest that the servers may take to start; 0 waits for ever (D129).
        model_endpoint_timeout_s: Longest wait for a model endpoint's first answer; 0 does not check (D129). A minute,
            so that a wrong URL does not look like a slow one; give an engine that still loads its weights more.
        policy_base_url: For ``${policy_base_url}`` in server options; so are the next two.
        verbose: Say more.
    """

    model_config = ConfigDict(**{**CaptureSettings.model_config, "extra": "forbid", "allow_inf_nan": False})

    capture_timeout_s: PositiveSeconds = 30.0
    capture_redaction: CaptureRedaction = Field(default_factory=CaptureRedaction)
    token_id_capture: TokenIdCaptureConfig = Field(default_factory=TokenIdCaptureConfig)
    servers: Mapping[str, ServerSettings] = Field(default_factory=dict)
    agent_name: Name | None = None
    input_jsonl_fpath: Path | None = None
    output_jsonl_fpath: Path | None = None
    limit: Annotated[Count | None, BeforeValidator(_zero_is_none)] = None
    num_repeats: Annotated[int | dict[str, int], BeforeValidator(_none_is_one)] = 1
    num_samples_in_parallel: PositiveCount | None = None
    interleave_repeats: bool = False
    responses_create_params: dict[str, Any] = Field(default_factory=dict, repr=False)  # may hold headers with keys
    run_timeout_s: PositiveSeconds | None = 600.0
    num_rollout_workers: PositiveCount | None = None
    head_server: HeadServer = Field(default_factory=HeadServer)
    start_timeout_s: Seconds = 600.0
    model_endpoint_timeout_s: Seconds = 60.0
    policy_base_url: HttpUrl | None = None
    policy_api_key: SecretStr | None = None
    policy_model_name: Name | None = None
    verbose: bool = False

    @property
    def token_dir(self) -> Path | None:
        """Directory of the token files; None when tokens are not captured, or kept by a sink that is not files."""
        return self.token_id_capture.dir_in_use(self.model_call_capture_dir)

    def trains(self, agent_name: str) -> bool:
        """Return whether the calls of an agent are captured for training (B129)."""
        block, agent = self.token_id_capture, self.servers.get(agent_name)
        if not block.enabled or agent is None or not isinstance(agent.options, AgentOptions):
            return False
        return block.all_agents or agent.options.token_id_capture

    def servers_of(self, server_type: ServerType) -> dict[str, ServerSettings]:
        """Return the servers of one type, by name."""
        return {name: server for name, server in self.servers.items() if server.type == server_type}

    def server(self, name: str, server_type: ServerType) -> ServerSettings:
        """Return a server by name.

        Raises:
            SettingsError: No server of that type has the name.
        """
        known = self.servers_of(server_type)
        if name not in known:
            problem = f"there is no server {name!r} of type {server_type}"
            raise SettingsError("settings", "", problem, did_you_mean(name, known) or "define one")
        return known[name]

    def with_servers(self, servers: Mapping[str, ServerSettings]) -> RunSettings:
        """Return these settings with other servers, such as those a running head server names (D130)."""
        return self.model_copy(update={"servers": dict(servers)})

    def to_yaml(self, *, redact: bool = False) -> str:
        """Return YAML that loads to equal settings.

        Args:
            redact: Replace secrets; such YAML is for people and still loads, without the secrets. What classes of the
                user's own are made with is left out: only they know what of it is secret.
        """
        tree = self.model_dump(exclude={"servers"}, exclude_defaults=True)
        if redact:
            block = tree.get("token_id_capture", {})
            for holder, name in [(block, name) for name in PLUG_IN_ARGUMENTS] + [
                (block.get("staging"), "storage_options")
            ]:
                if holder and name in holder:
                    holder[name] = dict.fromkeys(holder[name], REDACTED)
        for server in self.servers.values():
            options = server.options.model_dump(exclude_defaults=True)
            options |= {name: ref.model_dump() for name, ref in server.options.references().items()}
            tree[server.name] = {server.type: {server.implementation: options}}
        secrets = _secret_texts(tree) if redact else frozenset()
        return dump_yaml({key: _plain(value, secrets, redact) for key, value in tree.items()})


def _secret_texts(value: Any) -> frozenset[str]:
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        return frozenset({text} if len(text) >= MIN_SECRET_CHARS else ())
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return frozenset().union(*(_secret_texts(child) for child in children))


def _plain(value: Any, secrets: frozenset[str], redact: bool) -> Any:
    """Turn dumped settings into what YAML can hold, with ``${`` escaped so that it loads as it is."""
    if isinstance(value, Mapping):
        return {
            key: REDACTED
            if redact and is_secret_key(str(key)) and child is not None
            else _plain(child, secrets, redact)
            for key, child in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(child, secrets, redact) for child in value]
    if isinstance(value, SecretStr):
        return REDACTED if redact else escape_interpolation(value.get_secret_value())
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, str):
        return value
    if secrets:
        value = re.sub("|".join(map(re.escape, sorted(secrets, key=len, reverse=True))), REDACTED, value)
    return escape_interpolation(value)
