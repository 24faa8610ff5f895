"""The contract of a resources server: open a session, offer tools, score a response (D147-D149).

An environment holds decisions, never HTTP; :mod:`gym_ray.environments.app` serves any of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from gym_ray.errors import ResourcesServerError

__all__ = ["Environment", "Session", "Tool", "ToolError", "UnknownSessionError", "VerifyBody", "VerifyReply"]


@dataclass(frozen=True, slots=True)
class Session:
    """Whose request it is.

    Attributes:
        id: Random id behind the signed session cookie.
        rollout_id: Id from the request's prefix, None without one.
    """

    id: str
    rollout_id: str | None = None


class ToolError(ResourcesServerError):
    """A tool cannot do what was asked; the agent gets the message as ``{"error": …}``.

    Args:
        message: What is wrong and what would be right, for a model to read.
        status: HTTP status of the answer.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message, status)
        self.message, self.status = message, status

    def __str__(self) -> str:
        return self.message


class UnknownSessionError(ResourcesServerError):
    """The session was never seeded here, or is gone; scoring it would be a guess."""


class VerifyBody(BaseModel):
    """What every verify request has (D148). Other row fields are allowed and not echoed."""

    model_config = ConfigDict(extra="ignore")

    responses_create_params: dict[str, Any]
    response: dict[str, Any]


@dataclass(frozen=True, slots=True)
class VerifyReply:
    """A score (D148).

    Attributes:
        reward: The score; None says that it could not be measured.
        extra: Fields of the environment's own.
        mask_sample: The sample must not be trained on.
        failure_kind: Kind of failure inside the verifier, None without one.
        failure_reason: What happened then.
    """

    reward: float | None
    extra: Mapping[str, Any] = field(default_factory=dict)
    mask_sample: bool = False
    failure_kind: str | None = None
    failure_reason: str | None = None

    def as_json(self, body: VerifyBody) -> dict[str, Any]:
        """Return the reply as it goes over the wire."""
        return {
            "responses_create_params": body.responses_create_params,
            "response": body.response,
            "reward": self.reward,
            "mask_sample": self.mask_sample,
            "failure_kind": self.failure_kind,
            "failure_reason": self.failure_reason,
            **self.extra,
        }


Tool = Callable[[Session, dict[str, Any]], Awaitable[Any]]
"""A tool: session and arguments in, a JSON value out; raises :class:`ToolError` for the model to read."""


class Environment:
    """Base of all environments; a subclass overrides what it needs. Many sessions run at once on one event loop."""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name; each is served at ``POST /<name>``."""
        return {}

    async def seed_session(self, session: Session, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Open a session with the whole run body and return what the agent may see."""
        return {}

    async def close_session(self, session: Session) -> None:
        """Free what the session holds; a session that is not there is no error."""

    async def verify(self, session: Session, body: dict[str, Any]) -> dict[str, Any]:
        """Score a response and return the whole reply.

        Raises:
            pydantic.ValidationError: A field of the body is missing or wrong; the app answers 422 and names it.
            UnknownSessionError: The session that the score depends on is not there.
        """
        raise NotImplementedError

    def aggregate_metrics(self, replies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:  # noqa: ARG002
        """Return metrics over verify replies of finished rollouts, name to value; nothing by default."""
        return {}

    def key_metrics(self, metrics: Mapping[str, Any]) -> dict[str, float] | None:  # noqa: ARG002
        """Return the few of its metrics by which a run is known; None, the default, lets every number be one.

        Args:
            metrics: What :meth:`aggregate_metrics` returned.
        """
        return None
