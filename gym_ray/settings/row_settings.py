"""Which rows a run takes, who runs them, and how often (D5 to D17). A resumed run keeps what the first one settled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from gym_ray.settings.fields import Count, FrozenModel, Name

__all__ = ["RowSettings"]


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


def _skills(value: Any) -> Any:
    if value is not None and not isinstance(value, Mapping | str | Path):
        raise ValueError("should be a directory, or a map that is put on every row as it is")
    return value


class RowSettings(FrozenModel):
    """How the input becomes the rows of a run.

    Attributes:
        agent_name: The agent of every row, over what the rows say (D13).
        agent_map: Agent by the row's own agent name or task source; ``_default`` for the rest (D13).
        fan_out: Agents by agent name: such a row runs once with each of them (D14).
        input_jsonl_fpath: Rows to run.
        limit: Rows to take from the input; None takes all (0 in a file means the same, D7).
        num_repeats: Rollouts per row, or by agent name with ``_default`` (D9).
        num_repeats_add_seed: Give each repeat its index as ``seed`` of its questions (D12).
        interleave_repeats: Run the first repeat of every row before the second of any (D11).
        prompt_config: YAML file with ``user`` and perhaps ``system``, which build the input of each row from its own
            fields; rows with an input of their own are refused (D12).
        skills_ref: Where the skills of the agents came from: an object that is put on every row as it is, or a
            directory, which is described by its name, path and digest (D12).
        responses_create_params: Laid over each row's own, at the top level only (D12).
        unique_rollout_ids: Put twelve digits of the run in front of each rollout id, so that no two runs, such as the
            steps of a training, ever share one; rows with ids of their own keep those.
    """

    agent_name: Name | None = None
    agent_map: dict[str, Name] = Field(default_factory=dict)
    fan_out: dict[str, list[Name]] = Field(default_factory=dict)
    input_jsonl_fpath: Path | None = None
    limit: Annotated[Count | None, BeforeValidator(_zero_is_none)] = None
    num_repeats: Annotated[int | dict[str, int], BeforeValidator(_none_is_one)] = 1
    num_repeats_add_seed: bool = False
    interleave_repeats: bool = False
    prompt_config: Path | None = None
    skills_ref: Annotated[dict[str, Any] | Path | None, BeforeValidator(_skills)] = None
    responses_create_params: dict[str, Any] = Field(default_factory=dict, repr=False)  # may hold headers with keys
    unique_rollout_ids: bool = False

    @field_validator("agent_map")
    @classmethod
    def _one_default(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if info.data.get("agent_name") not in (None, value.get("_default", info.data.get("agent_name"))):
            raise ValueError("its _default disagrees with agent_name; give one of the two")
        return value

    @field_validator("fan_out")
    @classmethod
    def _distinct_copies(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        for name, copies in value.items():
            if not copies or len(set(copies)) != len(copies):
                raise ValueError(f"should list at least one agent for {name!r}, each once")
        return value
