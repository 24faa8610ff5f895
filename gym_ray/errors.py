"""Every error the package raises, one boundary a branch.

::

    GymRayError
    ├── SettingsError            a setting: file, key, what is wrong, what would be right     (ValueError)
    ├── InputError               a row of the input: file, line, field                        (ValueError)
    ├── RolloutIdError           an id that cannot be a rollout id                            (ValueError)
    ├── StorageError             the place where data should be durable                       (OSError)
    │   ├── StorageExistsError   exclusive create met an existing name                        (FileExistsError)
    │   ├── StorageMissingError  a name that should exist does not                            (FileNotFoundError)
    │   └── StorageTimeoutError  it was not known to be durable in time                       (TimeoutError)
    ├── CaptureError             evidence could not be kept or read
    │   ├── RolloutFrozenError   the rollout takes no new calls                               (RuntimeError)
    │   ├── RolloutRetiredError  the rollout's records were handed over and removed           (RuntimeError)
    │   ├── RecordConflictError  a call has another record already                            (ValueError)
    │   ├── RefusedRecordError   a record that could not be read back was not stored          (ValueError)
    │   ├── DamagedRecordError   a stored line is no record of its rollout                    (ValueError)
    │   ├── StaleCursorError     the records that a cursor points into were replaced or cut
    │   ├── RequiredPrefixError  an engine did not prove that it continued its parent's tokens  (RuntimeError)
    │   ├── NonFiniteLogProbError  a log probability is NaN or infinite                       (ValueError)
    │   ├── SeveralCarriersError   more than one item of an answer carries tokens             (ValueError)
    │   ├── ForeignKeyError      a staging key belongs to another store                       (ValueError)
    │   ├── StagedCallMissingError  a staging key leads to no call, or to another             (KeyError)
    │   ├── StreamingUnsupportedError  a call whose tokens would be staged is streamed
    │   ├── ControlRequestError  a control route refused or did not answer; status and body    (RuntimeError)
    │   ├── UnusableTokensError    no record can be made of a call's tokens                   (ValueError)
    │   ├── StagedPrefixError      what storage holds of a call's ancestors does not prove its prefix (ValueError)
    │   └── ReceiptVerificationError  a rollout's receipt and its staged calls do not agree   (ValueError)
    │       └── RebuildError         verified calls do not make up one training row
    ├── EngineError              the engine behind a model server; carries status and body
    │   ├── EngineUnavailableError   no connection, or the engine is not ready
    │   ├── EngineConnectionError    the connection broke in the middle of an answer
    │   ├── EngineTimeoutError       no answer in time
    │   └── UnsupportedRequestError  the engine cannot do what the request asks (400/501)
    │       └── InvalidRequestError  the request breaks its dialect's schema; one problem a field (422)
    ├── AgentError               what ran a rollout
    │   └── AgentTimeoutError    it did not end in time
    ├── ResourcesServerError     what scored a rollout
    ├── ChildInterpreterError    a process that works for this one ended or could not be started
    ├── MaskLimitExceededError   too many rollouts of a run cannot be trained on             (RuntimeError)
    └── ClusterError             Ray, placement, or a server's start
        ├── ServerStartError     a hosted server did not come up
        └── RunNotFoundError     no running servers where they were looked for

Ray pickles errors between processes and rebuilds them from ``args``; so every constructor here takes positional
arguments and passes all of them on, and a test round-trips each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class GymRayError(Exception):
    """Base of every error of this package."""


class SettingsError(GymRayError, ValueError):
    """A setting is wrong. The message is one line: file, key, what is wrong, what would be right.

    Args:
        where: File, or ``command line``, that the value came from.
        key: Dotted key.
        problem: What is wrong.
        remedy: What would be right.
    """

    def __init__(self, where: str, key: str, problem: str, remedy: str = "") -> None:
        super().__init__(where, key, problem, remedy)
        self.where, self.key, self.problem, self.remedy = where, key, problem, remedy

    def __str__(self) -> str:
        place = f"{self.where}: {self.key}" if self.key else self.where
        return f"{place}: {self.problem}" + (f"; {self.remedy}" if self.remedy else "")


class InputError(GymRayError, ValueError):
    """A row of the input cannot be used.

    Args:
        path: The input file.
        line: Line number counted from 1, or 0 for the file as a whole.
        field: Dotted field, or "" for the line as a whole.
        problem: What is wrong and what would be right.
    """

    def __init__(self, path: str | Path, line: int, field: str, problem: str) -> None:
        super().__init__(str(path), line, field, problem)
        self.path, self.line, self.field, self.problem = str(path), line, field, problem

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.field}: {self.problem}" if self.field else f"{place}: {self.problem}"


class RolloutIdError(GymRayError, ValueError):
    """A value cannot be a rollout id (A25); the message shows the value and the field it came from."""


class StorageError(GymRayError, OSError):
    """The storage below could not do what was asked; the message names the path."""


class StorageExistsError(StorageError, FileExistsError):
    """An exclusive create met a name that exists."""


class StorageMissingError(StorageError, FileNotFoundError):
    """A name that should exist does not."""


class StorageTimeoutError(StorageError, TimeoutError):
    """Something was not known to be durable in time; it may become so later."""


class CaptureError(GymRayError):
    """Evidence could not be kept or read; the message names the file and, where there is one, the line."""


class RolloutFrozenError(CaptureError, RuntimeError):
    """The rollout has been frozen and takes no new calls (B64, B66)."""


class RolloutRetiredError(CaptureError, RuntimeError):
    """The rollout's records were handed over and removed (B64-B67)."""


class RecordConflictError(CaptureError, ValueError):
    """A call id was used again for another record (B64)."""


class RefusedRecordError(CaptureError, ValueError):
    """A record was not stored, because no reader could read it back (W21, B8); the message names what is wrong."""


class DamagedRecordError(CaptureError, ValueError):
    """A stored line is no record of its rollout; the message names the file and the place in it (B73)."""


class StaleCursorError(CaptureError):
    """The records that a cursor points into were replaced or cut; the reader starts again from the first (B50)."""


class RequiredPrefixError(CaptureError, RuntimeError):
    """An engine did not prove that it continued the parent's tokens (B95, W35).

    Args:
        reason: ``prefix_removed``, ``prefix_unproven`` or ``prefix_not_applied``.
        detail: What was found.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class NonFiniteLogProbError(CaptureError, ValueError):
    """A log probability is NaN or infinite (W21); the message has its index."""


class SeveralCarriersError(CaptureError, ValueError):
    """More than one item of an answer carries tokens, so that nothing tells which are the call's (B19, B24)."""


class ForeignKeyError(CaptureError, ValueError):
    """A staging key was given to a store that it does not belong to.

    Args:
        key: The key.
        key_store: Id of the store that the key belongs to.
        this_store: Id of the store that it was given to.
        place: Where that store lies.
    """

    def __init__(self, key: str, key_store: str, this_store: str, place: str) -> None:
        super().__init__(key, key_store, this_store, place)
        self.key, self.key_store, self.this_store, self.place = key, key_store, this_store, place

    def __str__(self) -> str:
        return (
            f"staging key {self.key} belongs to store {self.key_store}, "
            f"not to store {self.this_store} at {self.place}: "
            "read it where it was staged"
        )


class StagedPrefixError(CaptureError, ValueError):
    """What storage holds of a call's ancestors does not prove the tokens that it continues (C127)."""


class StagedCallMissingError(CaptureError, KeyError):
    """A staging key leads to no call: it is unknown or retired, was asked for twice, or its row is another's (C126).

    Args:
        key: The key.
        problem: What is wrong with it.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.key, self.problem = key, problem

    def __str__(self) -> str:
        return f"staging key {self.key}: {self.problem}"


class StreamingUnsupportedError(CaptureError):
    """A call whose tokens would be staged is streamed (C101)."""


class ControlRequestError(CaptureError, RuntimeError):
    """A request to the control routes of a model server failed (C223).

    Args:
        message: What was asked, and what came of it.
        status: HTTP status of the answer, 0 when there was none.
        body: Text of a refusal, "" when there was none.
    """

    def __init__(self, message: str, status: int, body: str) -> None:
        super().__init__(message, status, body)
        self.message, self.status, self.body = message, status, body

    def __str__(self) -> str:
        return self.message


class UnusableTokensError(CaptureError, ValueError):
    """No record can be made of the tokens of a call.

    Args:
        reason: A code, as a rollout is marked with.
        detail: What was found.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class ReceiptVerificationError(CaptureError, ValueError):
    """A rollout's receipt and its staged calls do not agree, or it cannot be used: ``code`` is for programs (C341)."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}" if self.detail else self.code


class RebuildError(ReceiptVerificationError):
    """Calls that are verified one by one do not make up the row that the receipt names (C152)."""


class EngineError(GymRayError):
    """The engine behind a model server failed.

    Args:
        message: What happened, in words a client may see.
        status: HTTP status that the client should get.
        body: Answer body of the engine, b"" when there was none.
    """

    def __init__(self, message: str, status: int = 502, body: bytes = b"") -> None:
        super().__init__(message, status, body)
        self.message, self.status, self.body = message, status, body

    def __str__(self) -> str:
        return self.message


class EngineUnavailableError(EngineError):
    """The engine could not be reached, or is not ready."""

    def __init__(self, message: str, status: int = 503, body: bytes = b"") -> None:
        super().__init__(message, status, body)


class EngineConnectionError(EngineError):
    """The connection to the engine broke in the middle of an answer."""


class EngineTimeoutError(EngineError):
    """The engine did not answer in time."""

    def __init__(self, message: str, status: int = 504, body: bytes = b"") -> None:
        super().__init__(message, status, body)


class UnsupportedRequestError(EngineError):
    """The engine cannot do what the request asks; the message names the field or the dialect."""

    def __init__(self, message: str, status: int = 400, body: bytes = b"") -> None:
        super().__init__(message, status, body)


class InvalidRequestError(UnsupportedRequestError):
    """The request breaks its dialect's schema (A183-A185).

    Args:
        problems: One object a field, at least one: ``type``, ``loc`` (starts with ``body``), ``msg``, ``input``.
    """

    def __init__(self, problems: Sequence[Mapping[str, Any]]) -> None:
        first = problems[0]
        super().__init__(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}", 422)
        self.args = (problems,)
        self.problems = tuple(problems)


class AgentError(GymRayError):
    """An agent could not run its rollout.

    Args:
        failure_class: ``agent_run_error``, ``agent_request_failed``, ``engine_unavailable`` … (D35).
        message: What happened.
        status: HTTP status that was seen, or None.
        body: Text of the answer that was seen, "" when there was none.
    """

    def __init__(self, failure_class: str, message: str, status: int | None = None, body: str = "") -> None:
        super().__init__(failure_class, message, status, body)
        self.failure_class, self.message, self.status, self.body = failure_class, message, status, body

    def __str__(self) -> str:
        return self.message


class AgentTimeoutError(AgentError):
    """The rollout did not end within its time (class ``agent_timeout``)."""

    def __init__(
        self, message: str, failure_class: str = "agent_timeout", status: int | None = None, body: str = ""
    ) -> None:
        super().__init__(failure_class, message, status, body)
        self.args = (message, failure_class, status, body)


class ResourcesServerError(GymRayError):
    """What scores a rollout failed; the message names the server and the route."""


class ChildInterpreterError(GymRayError):
    """A process that does one function's work for this one ended, or could not be started."""


class MaskLimitExceededError(GymRayError, RuntimeError):
    """More rollouts of a run are masked than its settings allow (B125).

    Args:
        masked: Masked rollouts among those counted.
        finalised: Rollouts counted: of the whole run, or of the window.
        max_mask_fraction: The largest share that is allowed.
        reasons: How many of the masked rollouts gave each reason; a rollout may give several, or none.
        window: Size of the window whose share is too large, or None when that of the whole run is.
    """

    def __init__(
        self,
        masked: int,
        finalised: int,
        max_mask_fraction: float,
        reasons: Mapping[str, int],
        window: int | None = None,
    ) -> None:
        super().__init__(masked, finalised, max_mask_fraction, dict(reasons), window)
        self.masked, self.finalised, self.max_mask_fraction = masked, finalised, max_mask_fraction
        self.reasons, self.window = dict(reasons), window

    def __str__(self) -> str:
        whose = "finalised rollouts" if self.window is None else "last finalised rollouts"
        ranked = sorted(self.reasons.items(), key=lambda pair: (-pair[1], pair[0]))
        reasons = ", ".join(f"{reason}: {count}" for reason, count in ranked) or "none was named"
        return (
            f"{self.masked} of {self.finalised} {whose} are masked, a share of {self.masked / self.finalised:.4g}; "
            f"max_mask_fraction allows {self.max_mask_fraction:g}; reasons: {reasons}"
        )


class ClusterError(GymRayError):
    """Ray or the placement of our actors failed."""


class ServerStartError(ClusterError):
    """A hosted server did not come up; the message holds the cause."""


class RunNotFoundError(ClusterError):
    """No running servers were found where they were looked for."""
