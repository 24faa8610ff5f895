"""The settings of one run, checked and frozen (A126 to A129, D123). They lie flat: each field is a top-level key.

A run's settings travel: they pickle into actors, and their YAML is what the head server serves. Secrets show neither
in ``repr`` nor in redacted YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ConfigDict, Field, SecretStr

from gym_ray.errors import SettingsError
from gym_ray.log_context import LogFormat
from gym_ray.settings.agent_options import AgentOptions
from gym_ray.settings.attempt_settings import AttemptSettings
from gym_ray.settings.capture import CaptureSettings
from gym_ray.settings.capture_redaction import CaptureRedaction
from gym_ray.settings.fields import FrozenModel, HttpUrl, Name, Port, PositiveSeconds, Seconds
from gym_ray.settings.plain_yaml import REDACTED, plain, secret_texts
from gym_ray.settings.problems import did_you_mean
from gym_ray.settings.result_settings import ResultSettings
from gym_ray.settings.row_settings import RowSettings
from gym_ray.settings.server_options import ServerType
from gym_ray.settings.servers import ServerSettings
from gym_ray.settings.token_capture import PLUG_IN_ARGUMENTS, TokenIdCaptureConfig
from gym_ray.settings.yaml_files import dump_yaml

__all__ = ["REDACTED", "CaptureSettings", "HeadServer", "RunSettings"]


class HeadServer(FrozenModel):
    """Where ``env start`` can be asked about a run (D129)."""

    host: Name = "127.0.0.1"
    port: Port = 11000


class RunSettings(RowSettings, AttemptSettings, ResultSettings, CaptureSettings):
    """Everything that a run was told; its rows, its attempts, its results and its capture are described by its bases.

    Attributes:
        capture_timeout_s: Longest that one call's capture may hold back its answer.
        capture_redaction: What is taken out of captures besides the run's own credentials.
        token_id_capture: Whether exact tokens are captured for training, and what becomes of them (B126).
        servers: Servers by name.
        head_server: Where the run can be found.
        start_timeout_s: Longest that the servers may take to start; 0 waits for ever (D129).
        model_endpoint_timeout_s: Longest wait for a model endpoint's first answer; 0 does not check (D129). A minute,
            so that a wrong URL does not look like a slow one; give an engine that still loads its weights more.
        policy_base_url: For ``${policy_base_url}`` in server options; so are the next two.
        verbose: Say more.
        log_format: How the processes of a run log: ``text``, or ``json`` for one object a line, with the rollout id and
            the number of the attempt that a line is about. Where Ray was begun by somebody else, that one's
            ``ray.LoggingConfig`` decides.
    """

    model_config = ConfigDict(**{**CaptureSettings.model_config, "extra": "forbid", "allow_inf_nan": False})

    capture_timeout_s: PositiveSeconds = 30.0
    capture_redaction: CaptureRedaction = Field(default_factory=CaptureRedaction)
    token_id_capture: TokenIdCaptureConfig = Field(default_factory=TokenIdCaptureConfig)
    servers: Mapping[str, ServerSettings] = Field(default_factory=dict)
    head_server: HeadServer = Field(default_factory=HeadServer)
    start_timeout_s: Seconds = 600.0
    model_endpoint_timeout_s: Seconds = 60.0
    policy_base_url: HttpUrl | None = None
    policy_api_key: SecretStr | None = None
    policy_model_name: Name | None = None
    verbose: bool = False
    log_format: LogFormat = "text"

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
                (block.get("staging"), "storage_options"),
                (tree, "model_call_capture_storage_options"),
            ]:
                if holder and name in holder:
                    holder[name] = dict.fromkeys(holder[name], REDACTED)
        for server in self.servers.values():
            options = server.options.model_dump(exclude_defaults=True)
            options |= {name: ref.model_dump() for name, ref in server.options.references().items()}
            tree[server.name] = {server.type: {server.implementation: options}}
        secrets = secret_texts(tree) if redact else frozenset()
        return dump_yaml({key: plain(value, secrets, redact) for key, value in tree.items()})
