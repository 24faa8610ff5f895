"""Capture of calls in the process that generates them: admitted, completed once, staged, and only then acknowledged.

A call that cannot be staged is answered with coordinates that say so. A failure of capture never becomes a failure of
the call, and nothing is acknowledged before a sink has said that it is durable (C2, C3).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gym_ray.errors import CaptureError, StreamingUnsupportedError
from gym_ray.token_id_capture.staging.active_call import ActiveCall, resolved_prefix
from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.failures import CaptureFailure, FailureCounts, FailureKind
from gym_ray.token_id_capture.staging.protocols import CaptureAdapter, StagingSink, WeightVersionProvider
from gym_ray.token_id_capture.staging.record_of_call import BuildTurns, CallTokens, record_of_call
from gym_ray.token_id_capture.staging.records import CaptureAdmission, CommitCoords, StagedCallRecord, StageResult
from gym_ray.token_id_capture.token_arrays import LogProbs, TokenIds

__all__ = ["CaptureFailureHook", "CaptureHost", "RolloutTokenCapture", "install_capture"]

_log = logging.getLogger(__name__)

CaptureFailureHook: TypeAlias = Callable[[CaptureAdmission, str, str], None]
"""Told of each call that is not captured: its admission, the class of the failure (one of ``FAILURE_KINDS``), and what
was found, for people. Called by whichever thread found it, so it must not block; what it raises is logged."""


class RolloutTokenCapture:
    """Stages the tokens of calls; may be used from several threads, and different calls do not wait for each other.

    Args:
        sink: Keeps the records.
        weight_version_fn: Asked once a call, when it begins.
        adapter: Reads the engine's answers; only :meth:`complete_call_from_response` needs one.
        on_failure: Told of each call that is not captured, and why; coordinates do not say it.
    """

    def __init__(
        self,
        sink: StagingSink,
        weight_version_fn: WeightVersionProvider,
        adapter: CaptureAdapter | None = None,
        *,
        on_failure: CaptureFailureHook | None = None,
    ) -> None:
        self._sink, self._weight_version_fn, self._adapter = sink, weight_version_fn, adapter
        self._on_failure = on_failure
        self._failures, self._turns = FailureCounts(), BuildTurns()

    @property
    def failures(self) -> Mapping[str, int]:
        """How many calls were not captured, by the class of what went wrong (C330); a snapshot."""
        return self._failures.snapshot()

    def begin_call(
        self,
        admission: CaptureAdmission,
        *,
        prefix_token_ids: TokenIds | Column[int] | None = None,
        stream: bool = False,
        weight_version: int | None = None,
    ) -> ActiveCall:
        """Begin an admitted call (C101-C104). What is raised is the caller's mistake, and uses nothing up.

        Args:
            admission: What the model server granted.
            prefix_token_ids: The tokens that the prompt must begin with, where the admission does not hold them: a list
                or an array.
            stream: Whether the answer is streamed, which cannot be staged.
            weight_version: Which weights run; None asks the provider, once.

        Raises:
            TypeError: The admission is no :class:`CaptureAdmission`.
            StreamingUnsupportedError: The answer is streamed.
            CaptureError: Prefix and admission contradict each other, or the weight version is no integer of 0 or more.
        """
        if not isinstance(admission, CaptureAdmission):
            raise TypeError(f"a call is begun with a CaptureAdmission, not {type(admission).__name__}")
        if stream:
            raise StreamingUnsupportedError(
                f"rollout {admission.rollout_id}: call {admission.model_call_id} is streamed; tokens are staged before "
                "an answer leaves, so its worker must answer in one piece"
            )
        prefix = resolved_prefix(admission, prefix_token_ids)
        return ActiveCall(admission, self._weight_version(weight_version), prefix)

    def refuse(self, admission: CaptureAdmission, *, reason: str) -> CommitCoords:
        """Return the coordinates of an admitted call that will not be captured, and was never begun.

        Raises:
            CaptureError: The weight version is no integer of 0 or more.
        """
        weight_version = self._weight_version(None)
        return self._failed(admission, weight_version, CaptureFailure("failed_by_caller", reason))

    def complete_call(
        self,
        call: ActiveCall,
        *,
        prompt_token_ids: TokenIds | Column[int],
        generated_token_ids: TokenIds | Column[int],
        generated_logprobs: LogProbs | Column[float],
        extras: Mapping[str, Any] | None = None,
        attachments: Mapping[str, Any] | None = None,
    ) -> CommitCoords:
        """Stage a call and return where it is, or that it is not captured (C106-C117).

        Blocks until the sink has answered. Coordinates with ``disposition`` ``staged`` mean that the tokens, extras and
        all attachments are durable now: the answer may leave. ``capture_failed`` means that nothing refers to the call;
        the answer may leave all the same, and nothing is raised. Why it failed is in the log, is counted in
        :attr:`failures`, and is told to ``on_failure``.

        Args:
            call: The call; it is used up, whatever comes of it.
            prompt_token_ids: Ids of the whole prompt, prefix included: a list of ``int`` or a one-dimensional array.
            generated_token_ids: Sampled ids, alike.
            generated_logprobs: One log probability for each sampled id: a list of ``float`` or an array of floats.
            extras: What else is kept with the record and covered by its digests.
            attachments: Media of the call, opaque. If it is not None, an empty mapping included, the sink gets this
                very object, and a sink that takes none makes the call not captured (C97-C99).

        Raises:
            CaptureError: The call was completed before.
        """
        call.claim()
        tokens = CallTokens(prompt_token_ids, generated_token_ids, generated_logprobs)
        return self.finish_call(call, tokens, extras=extras, attachments=attachments)

    def complete_call_from_response(
        self, call: ActiveCall, payload: Any, *, attachments: Mapping[str, Any] | None = None
    ) -> CommitCoords:
        """Read an engine's answer through the adapter and do as :meth:`complete_call` does (C116).

        Args:
            call: The call.
            payload: The answer, as the adapter expects it.
            attachments: Media of the call.

        Raises:
            CaptureError: There is no adapter, and the call stays open; or the call was completed before.
        """
        self.require_adapter()
        call.claim()
        return self.finish_call_from_response(call, payload, attachments=attachments)

    def fail_call(self, call: ActiveCall, *, reason: str) -> CommitCoords:
        """Give a call up and return its coordinates (C106).

        Args:
            call: The call; it is used up.
            reason: Why, for the log and ``on_failure``; the coordinates do not carry it.

        Raises:
            CaptureError: The call was completed before.
        """
        call.claim()
        return self.fail_claimed(call, "failed_by_caller", reason)

    def require_adapter(self) -> CaptureAdapter:
        """Return the adapter.

        Raises:
            CaptureError: There is none.
        """
        if self._adapter is None:
            raise CaptureError("no adapter was installed that could read an engine's answer; use complete_call")
        return self._adapter

    def finish_call(
        self,
        call: ActiveCall,
        tokens: CallTokens,
        *,
        extras: Mapping[str, Any] | None = None,
        attachments: Mapping[str, Any] | None = None,
    ) -> CommitCoords:
        """Do the rest of :meth:`complete_call` for a call that the caller has claimed."""
        record = record_of_call(call, tokens, extras, self._turns)
        outcome = record if isinstance(record, CaptureFailure) else self._stage(record, attachments)
        if isinstance(outcome, CaptureFailure):
            return self._failed(call.admission, call.weight_version, outcome)
        return outcome

    def finish_call_from_response(
        self, call: ActiveCall, payload: Any, *, attachments: Mapping[str, Any] | None = None
    ) -> CommitCoords:
        """Do the rest of :meth:`complete_call_from_response` for a call that the caller has claimed.

        Raises:
            CaptureError: There is no adapter.
        """
        adapter = self.require_adapter()
        try:
            tokens = CallTokens(adapter.extract_prompt_ids(payload), *adapter.extract_generation(payload))
            extras = _aligned(adapter, adapter.extract_extras(payload), payload, call, tokens)
        except Exception as error:  # noqa: BLE001 - an adapter is foreign code; its failure is one of capture (C116)
            return self._failed(call.admission, call.weight_version, CaptureFailure.raised("adapter", error))
        return self.finish_call(call, tokens, extras=extras, attachments=attachments)

    def fail_claimed(self, call: ActiveCall, kind: FailureKind, reason: str) -> CommitCoords:
        """Count and log why a claimed call is not captured, and return its coordinates (C117, C330)."""
        return self._failed(call.admission, call.weight_version, CaptureFailure(kind, reason))

    def _weight_version(self, given: int | None) -> int:
        version: object = self._weight_version_fn() if given is None else given
        if not isinstance(version, int) or isinstance(version, bool) or version < 0:
            raise CaptureError(f"a weight version is an integer of 0 or more, not {version!r}")
        return int(version)

    def _stage(self, record: StagedCallRecord, attachments: Mapping[str, Any] | None) -> CommitCoords | CaptureFailure:
        try:
            if attachments is None:
                result: object = self._sink.stage(record)
            else:
                _refuse_old_extension(self._sink)
                result = self._sink.stage(record, attachments=attachments)
        except Exception as error:  # noqa: BLE001 - a sink is foreign code; the call counts as not durable (C114)
            failure = CaptureFailure.raised("sink_raised", error)
            if attachments is None or not isinstance(error, TypeError) or _takes_attachments(self._sink):
                return failure
            remedy = (
                f"{type(self._sink).__name__}.stage takes no attachments: give it the keyword attachments, and keep "
                "everything in one write, or complete the call with attachments=None"
            )
            return CaptureFailure("sink_raised", f"{failure.reason}; {remedy}")
        if not isinstance(result, StageResult):
            return CaptureFailure("sink_answer", f"the sink answered {type(result).__name__} and no StageResult")
        if result.ok is not True:
            return CaptureFailure("sink_rejected", result.error or "the sink gave no reason")
        try:
            return _coordinates(record, result.staging_key)
        except ValueError as error:  # a result that was made without validation
            return CaptureFailure(
                "sink_answer", f"the sink staged the call under no key, but {result.staging_key!r}: {error}"
            )

    def _failed(self, admission: CaptureAdmission, weight_version: int, failure: CaptureFailure) -> CommitCoords:
        self._failures.add(failure.kind)
        _log.error(
            "rollout %s: call %s is not captured (%s): %s",
            admission.rollout_id,
            admission.model_call_id,
            failure.kind,
            failure.reason,
        )
        if self._on_failure is not None:
            _tell(self._on_failure, admission, failure)
        return CommitCoords(
            rollout_id=admission.rollout_id,
            model_call_id=admission.model_call_id,
            parent_call_id=admission.parent_call_id,
            prev_len=admission.prev_len,
            delta_len=0,
            cum_len=admission.prev_len,
            weight_version=weight_version,
            disposition="capture_failed",
        )


class CaptureHost:
    """The least that something needs to have capture installed (C118).

    Attributes:
        token_capture: The installed capture, None until there is one.
    """

    def __init__(self) -> None:
        self.token_capture: RolloutTokenCapture | None = None

    def install_token_capture(self, capture: RolloutTokenCapture) -> None:
        """Take the capture."""
        self.token_capture = capture


def install_capture(
    host: Any,
    *,
    sink: StagingSink,
    weight_version_fn: WeightVersionProvider,
    adapter: CaptureAdapter | None = None,
    on_failure: CaptureFailureHook | None = None,
) -> RolloutTokenCapture:
    """Build a capture, hand it to ``host.install_token_capture`` and return it (C118).

    Args:
        host: Has ``install_token_capture``, such as a :class:`CaptureHost`.
        sink: As :class:`RolloutTokenCapture` takes it; so are the others.
        weight_version_fn: Asked once a call.
        adapter: Reads the engine's answers.
        on_failure: Told of each call that is not captured, and why.

    Raises:
        TypeError: The sink has no ``stage``, the provider or ``on_failure`` cannot be called, or the host has no
            ``install_token_capture``.
    """
    if not callable(getattr(sink, "stage", None)):
        raise TypeError(f"{type(sink).__name__} is no staging sink: it has no stage")
    if not callable(weight_version_fn):
        raise TypeError(f"a weight version provider is called for the version; {weight_version_fn!r} cannot be called")
    if on_failure is not None and not callable(on_failure):
        raise TypeError(f"on_failure is called for each call that is not captured; {on_failure!r} cannot be called")
    install = getattr(host, "install_token_capture", None)
    if not callable(install):
        raise TypeError(f"{type(host).__name__} cannot host token capture: it has no install_token_capture")
    capture = RolloutTokenCapture(sink, weight_version_fn, adapter, on_failure=on_failure)
    install(capture)
    return capture


def _aligned(
    adapter: CaptureAdapter, extras: dict[str, Any] | None, payload: Any, call: ActiveCall, tokens: CallTokens
) -> dict[str, Any] | None:
    align = getattr(adapter, "align_extras", None)
    if extras is None or align is None:
        return extras
    lengths = {"prompt_len": len(tokens.prompt), "generation_len": len(tokens.generated)}
    aligned: dict[str, Any] | None = align(extras, payload, prev_len=call.admission.prev_len, **lengths)
    return aligned


def _refuse_old_extension(sink: object) -> None:
    """Refuse a sink that takes media only through the older extension.

    Raises:
        TypeError: It has ``stage_with_attachments``, and ``stage`` does not take ``attachments``.
    """
    if hasattr(sink, "stage_with_attachments") and not _takes_attachments(sink):
        raise TypeError(
            f"{type(sink).__name__} takes media through stage_with_attachments, an older extension that is not used "
            "any more; stage must take the keyword attachments and keep everything in one write"
        )


def _tell(on_failure: CaptureFailureHook, admission: CaptureAdmission, failure: CaptureFailure) -> None:
    try:
        on_failure(admission, failure.kind, failure.reason)
    except Exception:  # noqa: BLE001 - the hook is foreign code; what it does changes nothing about the call
        _log.exception("rollout %s: on_failure raised for call %s", admission.rollout_id, admission.model_call_id)


def _takes_attachments(sink: Any) -> bool:
    """Return whether ``stage`` has the keyword; what cannot be told counts as yes."""
    try:
        parameters = inspect.signature(sink.stage).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(one.name == "attachments" or one.kind is one.VAR_KEYWORD for one in parameters)


def _coordinates(record: StagedCallRecord, staging_key: str | None) -> CommitCoords:
    return CommitCoords(
        rollout_id=record.rollout_id,
        model_call_id=record.model_call_id,
        parent_call_id=record.parent_call_id,
        prev_len=record.prev_len,
        delta_len=record.delta_len,
        cum_len=record.cum_len,
        weight_version=record.weight_version,
        digest=record.digest,
        extras_digest=record.extras_digest,
        staging_key=staging_key,
        chain_hash=record.chain_hash,
        cumulative_hash=record.cumulative_hash,
    )
