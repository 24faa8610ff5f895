"""The result of looking up the parent of a call, and the protocol of what looks it up (B42, B49).

A link is either proven or not there. There is no third answer: a wrong link is worse than a lost sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from gym_ray.token_id_capture.records import ParentResolutionStatus
from gym_ray.token_id_capture.token_arrays import TokenArray, TokenIds, pack_token_ids

__all__ = [
    "AMBIGUOUS_REASON",
    "LOOKUP_ERROR_REASON",
    "NOT_ATTEMPTED_REASON",
    "NO_MATCH_REASON",
    "RESOLVER_UNAVAILABLE_REASON",
    "SEEDED_ROOT_REASON",
    "LineageMatch",
    "LineageResolution",
    "LineageResolver",
]

NO_MATCH_REASON: Final = "no_match"
AMBIGUOUS_REASON: Final = "ambiguous"
RESOLVER_UNAVAILABLE_REASON: Final = "resolver_unavailable"
LOOKUP_ERROR_REASON: Final = "lookup_error"
NOT_ATTEMPTED_REASON: Final = "not_attempted"
SEEDED_ROOT_REASON: Final = "seeded_root"


@dataclass(frozen=True, slots=True, eq=False, init=False)
class LineageMatch:
    """The proven parent of a call (B42); immutable.

    Args:
        model_call_id: The parent.
        cumulative_token_ids: Its cumulative sequence, a tuple, a list or an array; a read-only array is shared.
        digest: As below, like everything else.

    Attributes:
        model_call_id: The parent.
        tokens: Its cumulative sequence, verified: a read-only view of a buffer that later calls share.
        digest: The digest of that sequence.
        ended_by: How its generation ended: ``eos``, ``length``, ``stop_sequence`` or empty.
        generated: How many trailing tokens of ``tokens`` it generated.
        chain_hash: Its chain hash, None if its record has none; of an external row, the row's.
        staging_chain: Of an external row, the keys of its chain.
        prev_len: Of an external row, the length of its prompt's known part.

    Raises:
        ValueError: The sequence is none of token ids (B10).
    """

    model_call_id: str
    tokens: TokenArray
    digest: str
    ended_by: str
    generated: int
    chain_hash: str | None
    staging_chain: tuple[Any, ...] | None
    prev_len: int | None

    def __init__(
        self,
        model_call_id: str,
        cumulative_token_ids: TokenIds,
        digest: str,
        *,
        ended_by: str = "",
        generated: int = 0,
        chain_hash: str | None = None,
        staging_chain: tuple[Any, ...] | None = None,
        prev_len: int | None = None,
    ) -> None:
        for name, value in (
            ("model_call_id", model_call_id),
            ("tokens", pack_token_ids(cumulative_token_ids)),
            ("digest", digest),
            ("ended_by", ended_by),
            ("generated", generated),
            ("chain_hash", chain_hash),
            ("staging_chain", staging_chain),
            ("prev_len", prev_len),
        ):
            object.__setattr__(self, name, value)

    @property
    def cumulative_token_ids(self) -> tuple[int, ...]:
        """``tokens`` as a tuple, made anew at every call; 36 bytes a token."""
        return tuple(self.tokens.tolist())


@dataclass(frozen=True, slots=True)
class LineageResolution:
    """A decision about a call's parent (B42).

    Raises:
        ValueError: Resolved without a match, or a match without resolved.
    """

    status: ParentResolutionStatus
    match: LineageMatch | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        resolved = self.status is ParentResolutionStatus.RESOLVED
        if resolved and self.match is None:
            raise ValueError("a resolved parent needs its match")
        if not resolved and self.match is not None:
            raise ValueError(f"a call that is {self.status} has no parent, but a match was given")


@runtime_checkable
class LineageResolver(Protocol):
    """Finds the parent of a call (B49); may be asked from any event loop, many times at once.

    Two methods are optional, for a resolver that reads no store: ``observe(entry, cumulative)`` is told of each record,
    after the sink has kept it, and ``forget(rollout_id)`` of a rollout that begins anew, whose records are cleared.
    """

    async def resolve(self, rollout_id: str, request_items: Sequence[object]) -> LineageResolution:
        """Return the decision for a request with these items, given every record that is kept (B43, B47).

        Raises:
            ValueError: The items cannot be hashed, or the parent's tokens do not prove themselves (B48).
            Exception: The records could not be read.
        """

    def is_process_shared(self) -> bool:
        """Whether resolvers in other processes see the same records."""

    async def close(self) -> None:
        """Let go of threads and memory; can be called again."""
