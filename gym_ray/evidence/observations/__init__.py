"""What an agent observed of its own rollout, and the trajectory that a finished record shows.

An agent builds an :class:`AgentObservationBundle` and returns it as ``ng_agent_observations`` of its reply. It says
which invocation made which model call, by the identifiers that it saw; the collector joins that with the capture::

    bundle = AgentObservationBundle(
        source="my_agent",
        records=[
            AgentInvocation(
                invocation_id="root",
                status="completed",
                model_calls=[ModelCallRef(model_ref={"type": "responses_api_models", "name": "policy_model"},
                                          response_id=response.id)],
                conversation=[*asked, *(item.model_dump() for item in response.output)],
            ),
        ],
    )
    return {"response": response, "reward": reward, "ng_agent_observations": bundle}
"""

from gym_ray.evidence.observations.bundle import AgentObservationBundle
from gym_ray.evidence.observations.conversation import validated_conversation
from gym_ray.evidence.observations.fields import ModelServerRef
from gym_ray.evidence.observations.gaps import GAP_CODES, gap
from gym_ray.evidence.observations.records import (
    AgentInvocation,
    ContextCompactionObservation,
    ModelCallRef,
    ObservationGap,
    SandboxObservation,
    ToolCallObservation,
)
from gym_ray.evidence.observations.trajectory import (
    TrajectoryModelCall,
    TrajectoryRecord,
    TrajectoryResponseMetadata,
    TrajectoryTokenStats,
    TrajectoryToolCall,
    TrajectoryTurn,
)
from gym_ray.evidence.observations.validation import validated_bundle, validated_trajectory

__all__ = [
    "GAP_CODES",
    "AgentInvocation",
    "AgentObservationBundle",
    "ContextCompactionObservation",
    "ModelCallRef",
    "ModelServerRef",
    "ObservationGap",
    "SandboxObservation",
    "ToolCallObservation",
    "TrajectoryModelCall",
    "TrajectoryRecord",
    "TrajectoryResponseMetadata",
    "TrajectoryTokenStats",
    "TrajectoryToolCall",
    "TrajectoryTurn",
    "gap",
    "validated_bundle",
    "validated_conversation",
    "validated_trajectory",
]
