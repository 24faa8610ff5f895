"""The services that a submitted evaluation may use: models that run elsewhere, in the run, or under Slurm (D134)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator

from gym_ray.settings.fields import FrozenModel, HttpUrl, Name, Port, PositiveCount
from gym_ray.submission.environment import EnvValue

__all__ = ["SERVICES", "ExternalService", "LocalModelService", "VllmService"]


class ExternalService(FrozenModel):
    """A model behind a URL that every node reaches.

    Attributes:
        base_url: Its URL, the ``/v1`` included.
        model: Its name there.
        api_key: Its key. ``host:NAME`` takes it from the environment here, ``runtime:NAME`` where the job runs.
    """

    type: Literal["external"]
    base_url: HttpUrl
    model: Name
    api_key: SecretStr | None = None

    @field_validator("api_key")
    @classmethod
    def _names_a_variable(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and value.get_secret_value() in ("host:", "runtime:"):
            raise ValueError("should name a variable: runtime:NAME")
        return value


class LocalModelService(FrozenModel):
    """The embedded model, in the run itself; its options are those of ``local_model`` in the settings of a run.

    Attributes:
        options: Options of the model server, such as ``n_ctx``; the run checks them.
        model: The name that its answers carry.
    """

    type: Literal["local_model"]
    model: Name | None = None
    model_path: Name | None = None
    n_ctx: PositiveCount | None = None
    n_parallel: PositiveCount | None = None
    n_threads: PositiveCount | None = None
    max_output_tokens: PositiveCount | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class VllmService(FrozenModel):
    """A vLLM server in a container, which Slurm would start. It is parsed, checked, and not started here.

    Attributes:
        container: Image.
        model: Model to serve.
        port: Where it listens.
    """

    type: Literal["vllm"]
    container: Name
    model: Name
    served_model_name: Name | None = None
    port: Port = 8000
    args: tuple[str, ...] | dict[str, Any] = ()
    command: Name | None = None
    env: dict[str, EnvValue] = Field(default_factory=dict)
    mounts: tuple[str, ...] | dict[str, str] = ()
    node_pool: Name | None = None
    nodes: PositiveCount | None = None
    replicas: PositiveCount | None = None
    tensor_parallel_size: PositiveCount | None = None
    pipeline_parallel_size: PositiveCount | None = None
    data_parallel_size: PositiveCount | None = None
    gpus: PositiveCount | None = None


SERVICES = {"external": ExternalService, "local_model": LocalModelService, "vllm": VllmService}
"""Model by the ``type`` of a service."""
