"""The bundle in which an agent hands its observations over, as ``ng_agent_observations`` of its reply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Self

from pydantic import Field, StrictStr, model_validator

from gym_ray.evidence.observations.fields import Observed
from gym_ray.evidence.observations.records import (
    AgentInvocation,
    ContextCompactionObservation,
    ObservationGap,
    SandboxObservation,
    ToolCallObservation,
)

__all__ = ["AgentObservationBundle", "check_no_circle", "check_unique"]

ObservationRecord = Annotated[
    AgentInvocation | ToolCallObservation | SandboxObservation | ContextCompactionObservation,
    Field(discriminator="kind"),
]


class AgentObservationBundle(Observed):
    """Everything that an agent observed in one rollout (D71, D72).

    Attributes:
        source: Name of the producer.
        records: Observations of all kinds; their order means nothing.
        gaps: What the producer knows to be missing.
    """

    source: StrictStr
    records: list[ObservationRecord] = Field(default_factory=list)
    gaps: list[ObservationGap] = Field(default_factory=list)

    @model_validator(mode="after")
    def _invocations_form_a_forest(self) -> Self:
        invocations = [record for record in self.records if isinstance(record, AgentInvocation)]
        check_unique((item.invocation_id for item in invocations), "invocation_id")
        check_no_circle({item.invocation_id: item.parent_invocation_id for item in invocations})
        return self


def check_unique(ids: Iterable[object], what: str) -> None:
    """Check that no id comes twice.

    Raises:
        ValueError: One does; it is named.
    """
    seen = set()
    for each in ids:
        if each in seen:
            raise ValueError(f"{what} {each!r} comes twice")
        seen.add(each)


def check_no_circle(parent_of: Mapping[str, str | None]) -> None:
    """Follow every chain of parents once; a parent that was not reported ends its chain (D72).

    Raises:
        ValueError: A chain comes back to where it began; the invocation is named.
    """
    clear: set[str] = set()
    for start in parent_of:
        chain: set[str] = set()
        at: str | None = start
        while at is not None and at in parent_of and at not in clear:
            if at in chain:
                raise ValueError(f"invocation {at!r} is its own ancestor")
            chain.add(at)
            at = parent_of[at]
        clear |= chain
