"""Where a submitted evaluation may run: a Ray cluster; Slurm's form is understood and refused with a reason (D136)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gym_ray.settings.fields import FrozenModel, Name, PositiveCount
from gym_ray.submission.environment import EnvValue

__all__ = ["COMPUTES", "NodePool", "RayCompute", "SlurmCompute"]


def _amount(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("should be a number")  # noqa: TRY004 - pydantic reports only ValueError
    return value


Amount = Annotated[float, BeforeValidator(_amount), Field(ge=0)]


class RayCompute(FrozenModel):
    """A Ray cluster.

    Attributes:
        address: Its job server, such as ``http://127.0.0.1:8265``; None leaves it to the command and its environment.
        working_dir: Directory that is uploaded for the job, relative to where the document is read; None uploads none.
        excludes: Patterns, as ``.gitignore`` writes them, of what is not uploaded.
        python: The interpreter on the nodes; None takes the one that the nodes run.
        entrypoint_num_cpus: CPUs that Ray keeps for the driver.
        entrypoint_resources: Other resources of the node that the driver runs on, such as one that has the storage.
        env: Environment of the job, on top of ``driver.env``.
        max_upload_mb: Largest upload, in units of 1,000,000 bytes; a larger one is refused.
    """

    type: Literal["ray"]
    address: Name | None = None
    working_dir: Name | None = None
    excludes: tuple[str, ...] = ()
    python: Name | None = None
    entrypoint_num_cpus: Amount | None = None
    entrypoint_resources: dict[str, Amount] = Field(default_factory=dict)
    env: dict[str, EnvValue] = Field(default_factory=dict)
    max_upload_mb: PositiveCount = 100


class NodePool(FrozenModel):
    """Nodes of one kind, as Slurm is asked for them."""

    partition: Name
    nodes: PositiveCount | None = None
    gpus_per_node: int | None = None
    cpus_per_node: PositiveCount | None = None
    cpus_per_task: PositiveCount | None = None
    ntasks_per_node: PositiveCount | None = None
    mem: Name | int | None = None
    time: Name | int | None = None
    qos: Name | None = None
    constraint: Name | None = None
    exclusive: bool | None = None
    extra_args: tuple[str, ...] = ()


class SlurmCompute(FrozenModel):
    """A Slurm cluster. It is parsed and checked; nothing here submits to one."""

    type: Literal["slurm"]
    account: Name
    node_pools: dict[str, NodePool] = Field(default_factory=dict)
    partition: Name | None = None
    qos: Name | None = None
    reservation: Name | None = None
    time: Name | int | None = None
    host: Name | None = None
    user: Name | None = None
    job_name: Name | None = None
    env: dict[str, EnvValue] = Field(default_factory=dict)
    mounts: tuple[str, ...] | dict[str, str] = ()
    extra_args: tuple[str, ...] = ()


COMPUTES = {"ray": RayCompute, "slurm": SlurmCompute}
"""Model by the ``type`` of a compute."""
