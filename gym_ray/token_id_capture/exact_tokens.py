"""What passes between token capture and an engine: the proven parent's tokens go in, the call's exact tokens come back.

An engine reports either exactly what it consumed and sampled, or why that cannot be known. It must never guess: a guess
would become a training row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from gym_ray.token_id_capture.extras import WeightSpan
from gym_ray.token_id_capture.token_arrays import FloatArray, TokenArray

__all__ = [
    "ExactTokens",
    "ParentTokens",
    "TokenOutcome",
    "Untrainable",
]


@dataclass(frozen=True, slots=True)
class ParentTokens:
    """The proven parent of a call, for an engine that takes tokens in.

    Attributes:
        model_call_id: The parent's call.
        token_ids: Its cumulative sequence, a read-only view.
        ended_by: How its generation ended, as in :class:`~gym_ray.token_id_capture.extras.CallExtras`.
        generated: How many trailing tokens of ``token_ids`` the parent generated.
    """

    model_call_id: str
    token_ids: TokenArray
    ended_by: str = ""
    generated: int = 0


@dataclass(frozen=True, slots=True)
class ExactTokens:
    """What an engine says it consumed and sampled in one call.

    Attributes:
        prompt_token_ids: The whole prompt that went in.
        generation_token_ids: The sampled tokens.
        generation_log_probs: One per sampled token.
        routed_experts: Routing payload of the engine, opaque.
        weight_spans: The engine's own word on weight versions, over generated tokens.
        constrained: A grammar bounded the choice.
        ended_by: ``eos``, ``length``, ``stop_sequence`` or empty.
        prefix_requested: The engine was asked to reuse the parent's tokens.
        prefix_supplied: The prompt that went in proves that it did.
        token_in: The way the parent's tokens went in.
    """

    prompt_token_ids: TokenArray
    generation_token_ids: TokenArray
    generation_log_probs: FloatArray
    routed_experts: Any | None = None
    weight_spans: tuple[WeightSpan, ...] = ()
    constrained: bool = False
    ended_by: str = ""
    prefix_requested: bool = False
    prefix_supplied: bool = False
    token_in: str = ""


@dataclass(frozen=True, slots=True)
class Untrainable:
    """The call was answered, but its tokens cannot be used.

    Attributes:
        reason: A code of :mod:`gym_ray.token_id_capture.reasons`.
        detail: The numbers behind it, for the reader.
        prefix_requested: The engine was asked to reuse the parent's tokens.
    """

    reason: str
    detail: str = ""
    prefix_requested: bool = False


TokenOutcome: TypeAlias = ExactTokens | Untrainable
