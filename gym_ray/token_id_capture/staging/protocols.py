"""The protocols of worker-owned staging: what keeps records, what gives them back, what an engine's worker provides.

A framework brings its own classes and need not import anything of ours: every protocol here is met by shape. Nothing
here knows where a record goes.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from gym_ray.token_id_capture.staging.records import StagedCallBaseSnapshot, StagedCallRecord, StageResult
    from gym_ray.token_id_capture.token_arrays import LogProbs, TokenArray, TokenIds

__all__ = [
    "CaptureAdapter",
    "PrefixSource",
    "StagingSink",
    "StagingSource",
    "WeightVersionProvider",
]


@runtime_checkable
class StagingSink(Protocol):
    """Where staged calls go (C120-C124). Called from several threads at once; it owns its locking."""

    def stage(self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None) -> StageResult:
        """Keep a record and all of its attachments in one durable write.

        The keyword is passed only where a completion was given a mapping (C98), so a sink for text alone may leave it
        out of its signature; the ``TypeError`` of such a sink is a failed capture, and nothing is tried again (C99).

        Args:
            record: The call.
            attachments: The media of the call by name, opaque; an empty mapping was supplied as well.

        Returns:
            ``ok`` with the key it can be fetched under, once the record and every attachment survive a crash of this
            process. The same record under the same key again changes nothing; other content is never written over it
            (C123). Not ok with what is wrong otherwise, and nothing of the call is left behind (C124).

        Raises:
            Exception: The write failed; the call counts as not captured.
        """


@runtime_checkable
class StagingSource(Protocol):
    """Where staged calls are read (C125, C126)."""

    def fetch(self, staging_keys: Sequence[str]) -> list[StagedCallBaseSnapshot]:
        """Return one snapshot a key, in the order asked: metadata and token columns, no extras and no media.

        Raises:
            KeyError: A key is missing, unreadable or asked for twice, or its row is of another call.
            ValueError: A row is corrupt.
        """


@runtime_checkable
class PrefixSource(Protocol):
    """A source that can read token ids alone, which is all that a worker needs of a staging chain (C127)."""

    def fetch_prefix_token_ids(self, staging_keys: Sequence[str]) -> TokenArray:
        """Return the deltas of a chain, given from the root on, as one read-only array.

        Raises:
            KeyError: As :meth:`StagingSource.fetch`.
            ValueError: As :meth:`StagingSource.fetch`.
        """


class WeightVersionProvider(Protocol):
    """Says which weights the engine runs; asked once a call, at its admission, and must answer at once (C104, C128)."""

    def __call__(self) -> int:
        """Return the version, 0 or more."""


@runtime_checkable
class CaptureAdapter(Protocol):
    """Reads the tokens out of one engine's answers (C128, C130-C139). It never reads storage.

    One optional method is looked up by name: ``align_extras(extras, payload, *, prev_len, prompt_len, generation_len)``
    returns the extras of a call cut to the tokens that the call stages (C344).
    """

    def enter_prefix(self, request: MutableMapping[str, Any], prefix_token_ids: TokenIds) -> MutableMapping[str, Any]:
        """Put a copy of the prefix into an engine request and return that same request (C130)."""

    def extract_prompt_ids(self, payload: Any) -> TokenIds:
        """Return the ids of the whole prompt.

        Raises:
            Exception: The answer does not hold them, or not as ids.
        """

    def extract_generation(self, payload: Any) -> tuple[TokenIds, LogProbs]:
        """Return the sampled ids and one log probability for each.

        Raises:
            Exception: The answer does not hold them, or not one by one.
        """

    def extract_extras(self, payload: Any) -> dict[str, Any] | None:
        """Return what else is kept with the call and covered by its digests, None for nothing.

        Raises:
            Exception: It is there and malformed.
        """
