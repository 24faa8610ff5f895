"""Records and begun calls that wait to be written, each with the future that its caller waits for."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Final

from gym_ray.errors import CaptureError, RefusedRecordError
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.token_files.append_files import AppendFiles, PendingPut
from gym_ray.token_id_capture.token_files.entry_lines import encode_entry
from gym_ray.token_id_capture.token_files.rollout_state import ENTRIES_SUFFIX, INTENTS_SUFFIX, check_store_rollout_id

__all__ = ["PendingAppend", "PendingIntent", "PendingRecord", "tell_outcomes"]

_LARGE_TOKENS: Final = 20_000
"""A record of more tokens takes milliseconds to encode, which no other file should wait for."""


class PendingAppend:
    """Lines for one file of one rollout; a :class:`~gym_ray.storage.group_commit.CommitItem`.

    Attributes:
        rollout_id: Its rollout.
        model_call_id: Its call.
        file_name: Its file.
        done: Ends when the lines are durable, or need not be written; raises why they are not.
        error: Why they are not.
        takes_long: Whether no other file should wait for these.
    """

    takes_long = False

    def __init__(self, rollout_id: str, model_call_id: str, suffix: str) -> None:
        self.rollout_id, self.model_call_id = check_store_rollout_id(rollout_id), model_call_id
        self.file_name = rollout_id + suffix
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()  # who stops waiting does not stop the append
        self.error: Exception | None = None

    def encode(self) -> bytes:
        """Return the lines."""
        raise NotImplementedError

    def wanted(self) -> bool:
        """Return whether the lines are to be written."""
        return True

    def committed(self, offset: int, length: int) -> None:
        """Take note that the lines are durable; where they stand is no matter here."""

    def failed(self, error: Exception) -> None:
        """Take note of why they may not be durable."""
        self.error = error

    def outcome(self) -> Exception | None:
        """Return what is to be raised, None when all is well; an exception of its own for each who waits."""
        error = self.error
        if error is None:
            return None
        if isinstance(error, CaptureError):
            return type(error)(*error.args)
        outcome = CaptureError(f"{self.file_name}: call {self.model_call_id!r} could not be kept: {error}")
        outcome.__cause__ = error
        return outcome


class PendingRecord(PendingAppend):
    """One record.

    Args:
        entry: The record; not to be changed before :attr:`done` ends.
        files: Where it goes.

    Raises:
        RolloutIdError: No file can be named after its rollout.
    """

    def __init__(self, entry: TokenEntry, files: AppendFiles) -> None:
        super().__init__(entry.rollout_id, entry.model_call_id, ENTRIES_SUFFIX)
        is_large = len(entry.prompt_token_ids) + len(entry.generation_token_ids) > _LARGE_TOKENS
        self.takes_long = is_large or files.takes_long(self.rollout_id)
        self.line = b""
        self.twin: PendingPut | None = None
        self._entry, self._files = entry, files

    def encode(self) -> bytes:
        """Return the record as a line.

        Raises:
            RefusedRecordError: It could not be read back (W21).
        """
        try:
            self.line = encode_entry(self._entry)
        except ValueError as error:
            problem = f"{self.rollout_id}: the record of call {self.model_call_id!r} is refused: {error}"
            raise RefusedRecordError(problem) from error
        return self.line

    def wanted(self) -> bool:
        """Return whether the record is new; asked under the rollout's lock."""
        return self._files.is_to_be_put(self.file_name, self)

    def outcome(self) -> Exception | None:
        """Return what is to be raised; an equal record of the same batch shares its fate."""
        if self.error is None and self.twin is not None:
            self.error = self.twin.error
        return super().outcome()


class PendingIntent(PendingAppend):
    """A call that is about to be dispatched.

    Raises:
        RolloutIdError: No file can be named after its rollout.
        ValueError: The call's id is no line.
    """

    def __init__(self, rollout_id: str, model_call_id: str) -> None:
        super().__init__(rollout_id, model_call_id, INTENTS_SUFFIX)
        if not model_call_id or not model_call_id.isprintable():
            raise ValueError(f"{rollout_id}: {model_call_id!r} cannot be kept as the id of a begun call")

    def encode(self) -> bytes:
        """Return the call's id as a line."""
        return self.model_call_id.encode() + b"\n"


def tell_outcomes(appends: Iterable[PendingAppend]) -> None:
    """End the waits for appends that have their outcome."""
    for append in appends:
        error = append.outcome()
        if error is None:
            append.done.set_result(None)
        else:
            append.done.set_exception(error)
