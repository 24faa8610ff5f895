"""What keeps token records, and what gives them back: the two protocols every backend meets (B52-B57).

A sink promises durability before it returns, a source a snapshot that can be dropped only as long as nothing was
added to it. Silence is never success: what a snapshot lacks stands in it as a :class:`CaptureProblem`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.reasons import UNPACKABLE_RECORD
from gym_ray.token_id_capture.records import TokenEntry

__all__ = [
    "CallOutcome",
    "CaptureProblem",
    "TokenCaptureSnapshot",
    "TokenSink",
    "TokenSource",
]

CallOutcome = Literal["withdrawn", "untrainable"]
"""How a call ended that has no record: nothing was served, or what was served cannot be trained on (W23)."""


@dataclass(frozen=True, slots=True)
class CaptureProblem:
    """Why a rollout is incomplete, named for its reader.

    Attributes:
        reason: A code.
        model_call_id: The call it is about, "" when it is about none or that is not known.
        detail: What was found, with numbers, files and lines.
    """

    reason: str
    model_call_id: str = ""
    detail: str = ""


class TokenCaptureSnapshot:
    """The records of a rollout at one moment; immutable (B56).

    A record that no array can hold (negative ids, non-finite log probabilities) stays in ``entries``, is left out of
    ``packed``, and makes the snapshot incomplete with a problem that names it.

    Args:
        rollout_id: The rollout.
        entries: Its records in any order, one a call.
        incomplete: Whether something was lost, or may have been.
        snapshot_id: Names this snapshot; not empty.
        version: Moves with every change of the rollout's evidence.
        problems: What is known to be wrong.

    Raises:
        ValueError: The snapshot id is empty.
    """

    __slots__ = ("_given", "_incomplete", "_packed", "_problems", "_rollout_id", "_snapshot_id", "_version")

    def __init__(
        self,
        rollout_id: str,
        entries: Sequence[TokenEntry | PackedEntry],
        incomplete: bool,
        snapshot_id: str,
        version: int,
        problems: Sequence[CaptureProblem] = (),
    ) -> None:
        if not snapshot_id:
            raise ValueError(f"{rollout_id}: a snapshot needs an id")
        packed, unpackable = _pack(entries)
        self._rollout_id, self._snapshot_id, self._version = rollout_id, snapshot_id, version
        self._given, self._packed = tuple(entries), tuple(packed)
        self._problems = (*problems, *(problem for problem in unpackable if problem not in problems))
        self._incomplete = incomplete or bool(unpackable)

    @property
    def rollout_id(self) -> str:
        """The rollout."""
        return self._rollout_id

    @property
    def incomplete(self) -> bool:
        """Whether something was lost, or may have been."""
        return self._incomplete

    @property
    def snapshot_id(self) -> str:
        """Names this snapshot."""
        return self._snapshot_id

    @property
    def version(self) -> int:
        """Moves with every change of the rollout's evidence."""
        return self._version

    @property
    def problems(self) -> tuple[CaptureProblem, ...]:
        """What is known to be wrong."""
        return self._problems

    @property
    def entries(self) -> tuple[TokenEntry, ...]:
        """The records with plain lists; packed ones are unpacked at every call."""
        return tuple(given.entry() if isinstance(given, PackedEntry) else given for given in self._given)

    @property
    def packed(self) -> tuple[PackedEntry, ...]:
        """The records with arrays, which is what builders read."""
        return self._packed

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenCaptureSnapshot):
            return NotImplemented
        return self._state() == other._state() and self.entries == other.entries

    __hash__ = None  # type: ignore[assignment]  # records can be changed by who holds them

    def __repr__(self) -> str:
        return (
            f"TokenCaptureSnapshot({self._rollout_id!r}, {len(self._given)} entries, incomplete={self._incomplete}, "
            f"snapshot_id={self._snapshot_id!r}, version={self._version}, {len(self._problems)} problems)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        state = self._rollout_id, self._given, self._incomplete, self._snapshot_id, self._version, self._problems
        return TokenCaptureSnapshot, state

    def _state(self) -> tuple[object, ...]:
        return self._rollout_id, self._incomplete, self._snapshot_id, self._version, self._problems


def _pack(entries: Sequence[TokenEntry | PackedEntry]) -> tuple[list[PackedEntry], list[CaptureProblem]]:
    packed: list[PackedEntry] = []
    problems: list[CaptureProblem] = []
    for entry in entries:
        if isinstance(entry, PackedEntry):
            packed.append(entry)
            continue
        try:
            packed.append(PackedEntry.of_entry(entry))
        except ValueError as error:
            problems.append(CaptureProblem(UNPACKABLE_RECORD, entry.model_call_id, str(error)))
    return packed, problems


@runtime_checkable
class TokenSink(Protocol):
    """Where records go. All methods may be called from any event loop.

    Three optional methods are looked up by name and stand outside the protocol on purpose:

    ``async begin_call(rollout_id, model_call_id)``
        Notes durably, before generation, that a call is about to be dispatched; one without a record later makes the
        rollout incomplete (B55). It may raise, which fails the call.
    ``async end_call(rollout_id, model_call_id, outcome, reason="")``
        Says how a begun call ended that has no record (W23). ``withdrawn``: nothing was served, the note is cleared.
        ``untrainable``: the rollout is incomplete, with ``reason`` as a problem. Durable when it returns.
    ``async has_evidence(rollout_id) -> bool``
        Whether there is any record, begun call or mark (W30).
    """

    async def put(self, entry: TokenEntry) -> None:
        """Keep a record; durable, and visible to every resolver, when this returns (B53).

        The same record again changes nothing.

        Raises:
            Exception: It was not kept; the caller marks the rollout.
        """

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """Say that evidence was lost; durable when this returns, also behind a freeze, and the version moves (B54)."""

    async def close(self) -> None:
        """Let go of what this client holds; can be called again."""


@runtime_checkable
class TokenSource(Protocol):
    """Where records are read. All methods may be called from any event loop.

    One optional method is looked up by name: ``delete(rollout_id)``, blocking or a coroutine, removes all that is kept
    of a rollout, so that it can begin anew. Without it, what an earlier run left under the same id stays.
    """

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Return what there is; again, with the same id, version and records, as long as nothing was added (B57)."""

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Remove the records if both the snapshot and the version are still those of the rollout, else return False."""

    async def close(self) -> None:
        """Let go of what this client holds; can be called again."""
