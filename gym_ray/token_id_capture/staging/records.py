"""What workers, model servers and trainers tell each other about one call (C20-C63).

Every record refuses unknown members and contradictions when it is made, also when it is read back from storage: the
digest is computed again. :meth:`StagedCallRecord.trusted` is for the one place that has just computed it. Numbers that
other writers spell loosely are read as the contract's readers do (C23); what is written here is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from gym_ray.token_id_capture.staging.call_shape import length_problem, link_problem, root_problem
from gym_ray.token_id_capture.staging.columns import Column, id_column, log_prob_column, mask_column
from gym_ray.token_id_capture.staging.constants import NO_EXTRAS_DIGEST, CallMode, Disposition
from gym_ray.token_id_capture.staging.digests import compute_extras_digest, compute_staging_digest
from gym_ray.token_id_capture.staging.extras_digest import copied_extras
from gym_ray.token_id_capture.token_arrays import TokenArray

__all__ = [
    "CaptureAdmission",
    "CommitCoords",
    "DigestHex",
    "Identifier",
    "NonNegInt",
    "StageResult",
    "StagedCallBaseSnapshot",
    "StagedCallRecord",
    "StagedCallSnapshot",
    "StagingRecord",
    "VersionedRecord",
    "default_staging_key",
]

Identifier: TypeAlias = Annotated[str, StringConstraints(strict=True, min_length=1)]
NonNegInt: TypeAlias = Annotated[int, Field(strict=True, ge=0)]
DigestHex: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern=r"\A[0-9a-f]{64}\z")]


def _column_of(make: Callable[[object], Column[Any]], number: str) -> tuple[object, ...]:
    schema = WithJsonSchema({"type": "array", "items": {"type": number}})
    return PlainValidator(make), PlainSerializer(lambda column: list(column), return_type=list), schema


IdColumn: TypeAlias = Annotated[Column[int], *_column_of(id_column, "integer")]
MaskColumn: TypeAlias = Annotated[Column[float], *_column_of(mask_column, "number")]
LogProbColumn: TypeAlias = Annotated[Column[float], *_column_of(log_prob_column, "number")]

_VERSIONS: Final = {"schema_version": 2, "digest_version": 2, "extras_digest_version": 1}
_NO_IDS: Final = Column[int](np.empty(0, np.uint32))


def default_staging_key(rollout_id: str, model_call_id: str) -> str:
    """Return the key of a call in a store that has no keys of its own (C15).

    Raises:
        ValueError: One of the ids is empty.
    """
    if not rollout_id or not model_call_id:
        raise ValueError(f"a staging key needs two ids, not {rollout_id!r} and {model_call_id!r}")
    return f"{rollout_id}/{model_call_id}"


class StagingRecord(BaseModel):
    """Base of every record: immutable, of the current version, without unknown members (C20, C21).

    Attributes:
        schema_version: Version of the record itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True)

    schema_version: Literal[2] = 2

    @model_validator(mode="after")
    def _refuse_a_contradiction(self) -> Self:
        try:
            problem = self._problem()
        except TypeError as error:  # pydantic would let it pass as it is
            problem = str(error)
        if problem:
            raise ValueError(problem)
        return self

    def _problem(self) -> str:
        """Say how the members contradict each other; empty if they do not."""
        return ""


class VersionedRecord(StagingRecord):
    """Base of records that carry digests, and so the versions of these (C21).

    Attributes:
        digest_version: How ``digest`` and the hashes are computed.
        extras_digest_version: How ``extras_digest`` is.
    """

    digest_version: Literal[2] = 2
    extras_digest_version: Literal[1] = 1

    @classmethod
    def _of_checked(cls, members: dict[str, Any]) -> Self:
        """Return a record of members that are known to be right.

        It is what ``model_construct`` returns for the same members, which looks for a default of each field: with many
        calls at a time that was a tenth of the time a call takes.

        Args:
            members: Every member but the versions.
        """
        record = cls.__new__(cls)
        parts = {
            "__dict__": {**_VERSIONS, **members},
            "__pydantic_fields_set__": set(members),
            "__pydantic_extra__": None,
            "__pydantic_private__": None,
        }
        for name, part in parts.items():
            object.__setattr__(record, name, part)
        return record


class CaptureAdmission(StagingRecord):
    """What a model server grants a worker for one call: its ids, and the parent that it proved (C30-C33).

    A root goes in as text. A child goes in as tokens: its prefix stands here, or behind the keys of ``staging_chain``,
    whose deltas make up the prefix in their order.

    Attributes:
        rollout_id: The rollout, any text that is not empty here; model servers and ledgers take A25's alone.
        model_call_id: The call, unique in its rollout.
        parent_call_id: The call that it continues; None for a root.
        prev_len: Tokens of the prefix, 0 for a root.
        mode: ``text``: the worker makes the prompt; ``token_in``: its prompt begins with the prefix.
        required_prefix_token_ids: The prefix; empty for a root, and where ``staging_chain`` leads to it.
        staging_chain: Staging keys of the calls that make up the prefix, root first.
        parent_chain_hash: ``chain_hash`` of the parent.
    """

    rollout_id: Identifier
    model_call_id: Identifier
    parent_call_id: Identifier | None = None
    prev_len: NonNegInt = 0
    mode: CallMode
    required_prefix_token_ids: IdColumn = Field(default_factory=lambda: _NO_IDS)  # any other default is copied deeply
    staging_chain: list[Identifier] = Field(default_factory=list)
    parent_chain_hash: DigestHex | None = None

    def _problem(self) -> str:
        return link_problem(self.mode, self.parent_call_id, self.prev_len) or (
            self._root_problem() if self.parent_call_id is None else self._child_problem()
        )

    def _root_problem(self) -> str:
        if len(self.required_prefix_token_ids) or self.staging_chain or self.parent_chain_hash is not None:
            return "a call without a parent has no prefix ids, no staging_chain and no parent_chain_hash"
        return ""

    def _child_problem(self) -> str:
        supplied = len(self.required_prefix_token_ids)
        if self.parent_chain_hash is None:
            return "a call with a parent needs its parent_chain_hash"
        if not self.staging_chain and supplied != self.prev_len:
            return f"without a staging_chain prev_len {self.prev_len} needs as many prefix ids, not {supplied}"
        if 0 < supplied < self.prev_len:
            return f"{supplied} prefix ids cannot be the prefix, which has {self.prev_len} tokens (C324)"
        return ""


class StagedCallBaseSnapshot(VersionedRecord):
    """A staged call as storage holds it: who, where in the chain, and the columns of its delta (C40-C46).

    The columns are read-only arrays that read like lists: ``uint32[n]`` or ``uint64[n]`` ids, a mask of truth values,
    ``float32[n]`` log probabilities, or ``float64[n]`` if they came as a list that float32 does not hold. Making one
    recomputes ``digest``; whether ``chain_hash`` and ``cumulative_hash`` fit the tokens, only the chain can tell.

    Attributes:
        rollout_id: The rollout; this and the next four are those of the admission.
        model_call_id: The call.
        parent_call_id: The call that it continues; None for a root.
        mode: How its prompt was made.
        prev_len: Tokens of the prefix, which are not in the delta.
        delta_len: Tokens of the delta.
        cum_len: Tokens of prompt and answer: ``prev_len + delta_len``.
        weight_version: Which weights generated it.
        digest: Covers every other member.
        token_ids_delta: Ids behind the prefix: new prompt, then answer.
        token_mask_delta: 1 for a generated token, 0 for one of the prompt.
        generation_log_probs_delta: Of each generated token, 0.0 for others.
        extras_digest: Covers the extras.
        chain_hash: Covers the delta and the parent's ``chain_hash``.
        cumulative_hash: Covers all tokens of prompt and answer.
    """

    rollout_id: Identifier
    model_call_id: Identifier
    parent_call_id: Identifier | None = None
    mode: CallMode
    prev_len: NonNegInt
    delta_len: NonNegInt
    cum_len: NonNegInt
    weight_version: NonNegInt
    digest: DigestHex
    token_ids_delta: IdColumn
    token_mask_delta: MaskColumn
    generation_log_probs_delta: LogProbColumn
    extras_digest: DigestHex = NO_EXTRAS_DIGEST
    chain_hash: DigestHex
    cumulative_hash: DigestHex

    @property
    def staging_key(self) -> str:
        """The key of this call in a store that has no keys of its own (C46)."""
        return default_staging_key(self.rollout_id, self.model_call_id)

    def _problem(self) -> str:
        computed = self.compute_digest()
        return "" if computed == self.digest else f"digest is {self.digest}, the values give {computed}"

    def compute_digest(self) -> str:
        """Return the digest of these very values, once more.

        Raises:
            TypeError: A value is missing, which validation does not let pass.
            ValueError: The values contradict each other.
        """
        return compute_staging_digest(
            rollout_id=self.rollout_id,
            model_call_id=self.model_call_id,
            parent_call_id=self.parent_call_id,
            mode=self.mode,
            prev_len=self.prev_len,
            delta_len=self.delta_len,
            cum_len=self.cum_len,
            weight_version=self.weight_version,
            token_ids_delta=self.token_ids_delta,
            token_mask_delta=self.token_mask_delta,
            generation_log_probs_delta=self.generation_log_probs_delta,
            extras_digest=self.extras_digest,
            chain_hash=self.chain_hash,
            cumulative_hash=self.cumulative_hash,
            schema_version=self.schema_version,
            digest_version=self.digest_version,
            extras_digest_version=self.extras_digest_version,
        )


class StagedCallRecord(StagedCallBaseSnapshot):
    """A staged call with its extras, whose digest must be the one it names (C50). It has no attachments (C52).

    Attributes:
        extras: JSON values by name that are kept with the call; None for none.
    """

    extras: Annotated[dict[str, Any], AfterValidator(copied_extras)] | None = None

    def _problem(self) -> str:
        found = compute_extras_digest(self.extras)
        if found != self.extras_digest:
            return f"extras_digest is {self.extras_digest}, the extras give {found}"
        return super()._problem()

    @classmethod
    def trusted(
        cls,
        *,
        rollout_id: str,
        model_call_id: str,
        parent_call_id: str | None,
        mode: CallMode,
        prev_len: int,
        delta_len: int,
        cum_len: int,
        weight_version: int,
        digest: str,
        token_ids_delta: TokenArray,
        token_mask_delta: NDArray[Any],
        generation_log_probs_delta: NDArray[Any],
        extras_digest: str,
        chain_hash: str,
        cumulative_hash: str,
        extras: dict[str, Any] | None = None,
    ) -> StagedCallRecord:
        """Return a record of values that have just been checked and hashed; nothing is done twice (C303).

        The arrays become its columns and the extras its own; nobody may change them any more. Never use it for values
        from outside.
        """
        return cls._of_checked(
            {
                "rollout_id": rollout_id,
                "model_call_id": model_call_id,
                "parent_call_id": parent_call_id,
                "mode": mode,
                "prev_len": prev_len,
                "delta_len": delta_len,
                "cum_len": cum_len,
                "weight_version": weight_version,
                "digest": digest,
                "token_ids_delta": Column(token_ids_delta),
                "token_mask_delta": Column(token_mask_delta),
                "generation_log_probs_delta": Column(generation_log_probs_delta),
                "extras_digest": extras_digest,
                "chain_hash": chain_hash,
                "cumulative_hash": cumulative_hash,
                "extras": extras,
            }
        )


class StagedCallSnapshot(StagedCallRecord):
    """A staged call with its extras, as read back from storage (C51)."""


class StageResult(StagingRecord):
    """What a sink answers: the key under which the call is durable, or why it is not (C55).

    Attributes:
        ok: Whether record and attachments are durable.
        staging_key: The key, if they are.
        error: Why not, if they are not.
    """

    ok: bool
    staging_key: Identifier | None = None
    error: str | None = None

    def _problem(self) -> str:
        if self.ok:
            return "" if self.staging_key is not None else "a success needs its staging_key"
        return "" if self.error else "a failure needs its error"


class CommitCoords(VersionedRecord):
    """What a worker answers a model server about one call: where it is staged and what proves it, or that it failed.

    The tokens stay in storage (C60-C63), the reason of a failure with the worker (C117). Ids, lengths, weight version
    and hashes are those of the staged record; a call that failed has no tokens, hashes or key.

    Attributes:
        disposition: ``staged``: durable now; ``capture_failed``: nothing refers to the call.
        staging_key: Leads to the record.
    """

    rollout_id: Identifier
    model_call_id: Identifier
    parent_call_id: Identifier | None = None
    prev_len: NonNegInt
    delta_len: NonNegInt
    cum_len: NonNegInt
    weight_version: NonNegInt
    disposition: Disposition = "staged"
    digest: DigestHex | None = None
    extras_digest: DigestHex | None = None
    staging_key: Identifier | None = None
    chain_hash: DigestHex | None = None
    cumulative_hash: DigestHex | None = None

    def _problem(self) -> str:
        staged = self.disposition == "staged"
        return (
            root_problem(self.parent_call_id, self.prev_len)
            or length_problem(self.prev_len, self.delta_len, self.cum_len, least=int(staged))
            or (self._staged_problem() if staged else self._failed_problem())
        )

    def _proofs(self) -> dict[str, str | None]:
        names = ("digest", "extras_digest", "staging_key", "chain_hash", "cumulative_hash")
        return {name: getattr(self, name) for name in names}

    def _staged_problem(self) -> str:
        missing = [name for name, value in self._proofs().items() if value is None]
        return f"a staged call needs {', '.join(missing)}" if missing else ""

    def _failed_problem(self) -> str:
        present = [name for name, value in self._proofs().items() if value is not None]
        if present:
            return f"a call whose capture failed has no {', '.join(present)}"
        return f"a call whose capture failed has no tokens, but delta_len is {self.delta_len}" if self.delta_len else ""
