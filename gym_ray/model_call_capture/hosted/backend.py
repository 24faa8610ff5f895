"""A capture writer whose records another process writes: batches go there, the open log stays on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gym_ray.errors import CaptureError, GymRayError
from gym_ray.model_call_capture.backends import WriterIdentity
from gym_ray.model_call_capture.batches import Batches
from gym_ray.model_call_capture.hosted.channel import HostedRecord, RecordChannel
from gym_ray.model_call_capture.local_adoption import begun_log, local_logs
from gym_ray.model_call_capture.open_log import OpenLog
from gym_ray.model_call_capture.store import capture_file_name
from gym_ray.model_call_capture.ticket import Ticket

__all__ = ["HostedBackend", "OpenedHosted"]

_MOST_RECORDS = 1024
_MOST_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class OpenedHosted:
    """A hosted writer at work for one server."""

    open_log: OpenLog
    commits: Batches[Ticket]
    channel: RecordChannel
    writer_id: str
    marks_first: bool = False  # the open log tells of the call until its mark is durable

    def name_of(self, rollout_id: str, part: int) -> str:  # noqa: ARG002 - a rollout has one file
        """Return the name of the rollout's file."""
        return capture_file_name(rollout_id)

    def last_segment(self) -> int | None:
        """Return None: there are no segments."""
        return None

    def withdraw(self, call_ids: Sequence[str]) -> None:
        """Tell the hosted writer, which may have their records already; see the protocol."""
        try:
            self.channel.withdraw(call_ids)
        except GymRayError as error:
            raise CaptureError(f"{self.channel.place}: calls of an earlier attempt may be recorded: {error}") from error

    def sign_off(self, *, finished: bool, marked: bool) -> None:
        """Take the writer out of the registry and give up its log; see the protocol.

        A writer that leaves something unsaid stays registered, so that joins know that its calls are unknown.
        """
        try:
            if finished and marked:
                self.channel.remove_writer(self.writer_id)
        except GymRayError as error:
            raise OSError(str(error)) from error
        finally:
            self.open_log.close()


class HostedBackend:
    """A directory that another process writes to.

    Args:
        channel: The way to that process.
        local_dir: Directory of this machine, with locks, that survives the process; the open log goes below it.
    """

    def __init__(self, channel: RecordChannel, *, local_dir: Path) -> None:
        self._channel = channel
        self.place = channel.place
        self._logs = local_logs(local_dir, self.place)

    def mark_incomplete(self, rollout_id: str) -> None:
        """Have the rollout marked; see the protocol."""
        try:
            self._channel.mark_incomplete(rollout_id)
        except GymRayError as error:
            raise CaptureError(f"{self.place}: cannot mark {rollout_id} incomplete: {error}") from error

    def lost_calls(self, writer_id: str, open_calls: Mapping[str, str]) -> Mapping[str, list[str]]:
        """Return what a predecessor lost; see :class:`~gym_ray.model_call_capture.local_adoption.Heritage`."""
        return self._channel.lost_calls(writer_id, open_calls)

    def remove_writer(self, writer_id: str) -> None:
        """Remove a predecessor's registration."""
        self._channel.remove_writer(writer_id)

    def open(
        self,
        identity: WriterIdentity,
        *,
        on_done: Callable[[Sequence[Ticket]], None],
        open_calls: Callable[[], int],
    ) -> OpenedHosted:
        """Begin to send records; see the protocol."""

        def register() -> None:
            self._channel.register(identity.registration(None))

        open_log = begun_log(self._logs, identity.label, identity.writer_id, self, self.place, register)
        commits: Batches[Ticket] = Batches(
            self.place,
            self._send,
            on_done=on_done,
            open_calls=open_calls,
            most_items=_MOST_RECORDS,
            most_bytes=_MOST_BYTES,
            lingers=False,
        )
        return OpenedHosted(open_log=open_log, commits=commits, channel=self._channel, writer_id=identity.writer_id)

    def _send(self, tickets: Sequence[Ticket]) -> None:
        sent: list[tuple[Ticket, HostedRecord]] = []
        for ticket in tickets:
            try:
                sent.append((ticket, HostedRecord(ticket.rollout_id, ticket.call_id, ticket.encode())))
            except Exception as error:  # noqa: BLE001 - boundary: one record that cannot be encoded fails alone
                ticket.failed(error)
        sent = [(ticket, record) for ticket, record in sent if ticket.wanted()]
        if not sent:
            return
        try:
            receipts = self._channel.append_many([record for _, record in sent])
        except Exception as error:  # noqa: BLE001 - boundary: whatever went wrong is told to all whose records these were
            for ticket, _ in sent:
                ticket.failed(error)
            return
        for (ticket, record), receipt in zip(sent, receipts, strict=True):
            if receipt.offset is not None:
                ticket.committed(receipt.offset, len(record.line))
            elif receipt.error or ticket.wanted():
                ticket.failed(CaptureError(receipt.error or f"{self.place}: not recorded"))
