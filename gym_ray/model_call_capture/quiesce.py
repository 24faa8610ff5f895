"""The question before a join: which calls of these rollouts must the capture directory hold?

Both sides of it. A server answers for its own writer; a joiner asks every registered writer, and finds out about dead
ones from their open logs. What cannot be known is said (an open call, a lost call, an unreachable writer), never left
out.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gym_ray import exact_json
from gym_ray.errors import RolloutIdError, StorageError
from gym_ray.model_call_capture.call_index import RecordedCall
from gym_ray.model_call_capture.heard_writers import HeardWriters
from gym_ray.model_call_capture.open_log import is_living, list_logs, living_open_calls, log_path
from gym_ray.model_call_capture.recovery import lost_calls_of_dead_writers
from gym_ray.model_call_capture.registry import RegisteredWriter, WriterRegistry
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_call_capture.writer import CaptureWriter

__all__ = [
    "QUIESCE_PATH",
    "FoundCalls",
    "TrainingMarks",
    "WrittenCalls",
    "ask_writer",
    "forget",
    "list_written_calls",
    "quiesce_endpoint",
]

QUIESCE_PATH = "/ng-capture/quiesce"
_MAX_WAIT_S = 600.0
_ANSWER_MARGIN_S = 5.0
_CONNECT_TIMEOUT_S = 2.0
"""A living server's kernel accepts at once, however busy the server is."""


class _QuiesceRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    rollout_ids: list[str] = Field(default_factory=list, max_length=10_000)
    timeout_s: float = Field(default=30.0, ge=0, le=_MAX_WAIT_S, allow_inf_nan=False)
    forget: list[str] = Field(default_factory=list, max_length=10_000)
    withdraw_open: bool = True


class TrainingMarks(Protocol):
    """What a server knows of rollouts that lost training tokens."""

    def unmarked(self) -> Container[str]:
        """Return the rollouts whose mark is not durable yet."""

    def forget(self, rollout_id: str) -> None:
        """Drop such marks of a rollout that begins anew."""


def quiesce_endpoint(
    writer: CaptureWriter | None, run_token: str | None, training: TrainingMarks | None = None
) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of ``POST /ng-capture/quiesce``.

    It takes ``{rollout_ids, timeout_s, forget, withdraw_open}``, all of them optional, and answers as
    :meth:`CaptureWriter.quiesce` says, with ``tokens_lost`` true for each rollout that lost training tokens while the
    mark that says so is not durable yet; 401 without the run token when there is one, 422 for a body it cannot use, 404
    when the server does not capture.

    Args:
        writer: The server's writer.
        run_token: The run's token.
        training: The server's training capture, None when it has none.
    """

    async def quiesce(request: Request) -> Response:
        if run_token is not None and not _authorised(request, run_token):
            return _error(401, "the run token is missing or wrong")
        if writer is None:
            return _error(404, "this server does not capture model calls")
        try:
            asked = _QuiesceRequest.model_validate_json(await request.body())
            answer = await writer.quiesce(
                asked.rollout_ids, asked.timeout_s, asked.forget, withdraw_open=asked.withdraw_open
            )
        except (ValidationError, RolloutIdError) as error:
            return _error(422, str(error))
        if training is not None:
            if asked.withdraw_open:
                for rollout_id in asked.forget:
                    training.forget(rollout_id)
            unmarked = training.unmarked()
            for rollout_id, entry in answer["rollouts"].items():
                entry["tokens_lost"] = rollout_id in unmarked
        return Response(exact_json.dumps(answer), media_type="application/json")

    return quiesce


def _authorised(request: Request, run_token: str) -> bool:
    given = request.headers.get("authorization", "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(given, b"Bearer " + run_token.encode())


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "capture_error", "code": None}}, status)


@dataclass(frozen=True, slots=True)
class WrittenCalls:
    """What the writers say about one rollout.

    Attributes:
        recorded: Calls whose records the capture file must hold.
        open_call_ids: Calls that had not ended within the timeout.
        lost_call_ids: Calls that a dead server began, never ended, and left in no file.
        unreachable_writers: Living writers that gave no answer; their calls are unknown.
        marked_incomplete: A writer has a mark for the rollout that may not be on disk yet.
        tokens_lost: A server lost training tokens of the rollout, and the mark that says so is not on disk yet.
        answered_writers: Writers of an object store that named all of their calls; the segments of others are searched.
        begun_at: When the attempt began, unix seconds, where an object store was asked about one: older records are not
            its own.
    """

    recorded: tuple[RecordedCall, ...] = ()
    open_call_ids: tuple[str, ...] = ()
    lost_call_ids: tuple[str, ...] = ()
    unreachable_writers: tuple[str, ...] = ()
    marked_incomplete: bool = False
    tokens_lost: bool = False
    answered_writers: tuple[str, ...] = ()
    begun_at: float | None = None

    @property
    def complete(self) -> bool:
        """Whether reading every recorded call gives all there was."""
        unknown = self.open_call_ids or self.lost_call_ids or self.unreachable_writers
        return not unknown and not self.marked_incomplete


async def list_written_calls(
    root: Path,
    rollout_ids: Sequence[str],
    *,
    client: httpx.AsyncClient,
    timeout_s: float,
    logless: HeardWriters | None = None,
    begun_at: float | None = None,
) -> dict[str, WrittenCalls]:
    """Ask every writer of a capture directory about these rollouts, living ones over HTTP, dead ones by their logs.

    Whether a writer lives its log's lock says, before it is asked: its address may lead to nobody, or to a stranger.
    Of one whose log is on another machine only its answers tell, as of a writer of an object store.

    Rollouts that a dead writer lost a call of are marked incomplete on disk when it returns.

    Args:
        root: Capture directory.
        rollout_ids: Rollouts to ask about.
        client: Pooled HTTP client.
        timeout_s: How long a writer may wait for open calls to end.
        logless: What is known of writers without a log here; None when they are never taken for dead.
        begun_at: When the attempts began, unix seconds; None when nobody knows.

    Returns:
        One entry for every rollout asked about.

    Raises:
        CaptureError: A dead writer's log, a capture file or a marker cannot be read or written.
        StorageError: The registered writers cannot be listed, or the log of one cannot be read.
    """
    known, unreadable = await asyncio.to_thread(_living_writers, root)
    writers = _to_be_asked(known, logless)
    body = {"rollout_ids": list(rollout_ids), "timeout_s": timeout_s}
    answers = await asyncio.gather(*(ask_writer(client, writer, body, timeout_s) for writer in writers))
    # The logs are looked at after the living were asked, so a writer that dies in between is found here.
    found = list(zip(writers, answers, strict=True))
    silent = await asyncio.to_thread(_silent_without_log, known, found, logless, begun_at)
    return await asyncio.to_thread(_combine, root, rollout_ids, found, unreadable, silent)


async def forget(
    root: Path,
    rollout_ids: Sequence[str],
    *,
    client: httpx.AsyncClient,
    timeout_s: float = 5.0,
    withdraw_open: bool = True,
    logless: HeardWriters | None = None,
) -> tuple[str, ...]:
    """Tell the living writers that nobody will ask about these rollouts again, or that they begin anew.

    Args:
        root: Capture directory.
        rollout_ids: Rollouts to forget.
        client: Pooled HTTP client.
        timeout_s: How long a writer may take to answer.
        withdraw_open: The calls that are open now belong to an attempt that is over: no record of theirs comes into
            a file that is cleared after this; each is logged and counted instead. Wanted before a rollout begins
            anew; with False a late record still joins its file.
        logless: What is known of writers without a log here; those that were declared dead are told now and then.

    Returns:
        The writers that could not be told. They keep a few bytes a call, and with ``withdraw_open`` their open calls
        of these rollouts may still be recorded.

    Raises:
        StorageError: The registered writers cannot be listed, or the log of one cannot be read.
    """
    known, unreadable = await asyncio.to_thread(_living_writers, root)
    writers = _to_be_asked(known, logless)
    body = {"rollout_ids": [], "timeout_s": 0.0, "forget": list(rollout_ids), "withdraw_open": withdraw_open}
    answers = await asyncio.gather(*(ask_writer(client, writer, body, timeout_s) for writer in writers))
    found = list(zip(writers, answers, strict=True))
    await asyncio.to_thread(_silent_without_log, known, found, logless, None)
    untold = [writer.writer_id for writer, answer in found if answer is None]
    return (*untold, *unreadable)


def _living_writers(root: Path) -> tuple[list[RegisteredWriter], list[str]]:
    writers, unreadable = WriterRegistry(root).all()
    try:
        return [writer for writer in writers if _may_live(root, writer)], unreadable
    except OSError as error:
        raise StorageError(f"{root}: a writer's log cannot be read: {error}") from error


def _may_live(root: Path, writer: RegisteredWriter) -> bool:
    return writer.open_log is None or is_living(log_path(root, writer.open_log))


def _to_be_asked(writers: Sequence[RegisteredWriter], logless: HeardWriters | None) -> list[RegisteredWriter]:
    """Leave out those without a log that were declared dead, but for now and then."""
    if logless is None:
        return list(writers)
    return [writer for writer in writers if writer.open_log is not None or logless.is_to_be_asked(writer.writer_id)]


def _silent_without_log(
    known: Sequence[RegisteredWriter],
    answers: list[tuple[RegisteredWriter, dict[str, Any] | None]],
    logless: HeardWriters | None,
    begun_at: float | None,
) -> list[str]:
    """Return the writers without a log that gave no answer, and whose calls may be unknown for that."""
    answered = {writer.writer_id for writer, answer in answers if answer is not None}
    silent = []
    for writer in known:
        if writer.open_log is not None:
            continue
        if writer.writer_id not in answered:
            if logless is None or logless.silent(writer.writer_id, begun_at):
                silent.append(writer.writer_id)
        elif logless is not None:
            logless.answered(writer.writer_id)
    return silent


async def ask_writer(
    client: httpx.AsyncClient, writer: RegisteredWriter, body: dict[str, Any], timeout_s: float
) -> dict[str, Any] | None:
    """Return a writer's answer, None when there is none."""
    if writer.url is None:
        return None
    headers = {"Authorization": f"Bearer {writer.run_token}"} if writer.run_token is not None else {}
    try:
        url = writer.url.rstrip("/") + QUIESCE_PATH
        timeout = httpx.Timeout(timeout_s + _ANSWER_MARGIN_S, connect=_CONNECT_TIMEOUT_S)
        response = await client.post(url, json=body, headers=headers, timeout=timeout)
    except httpx.HTTPError:
        return None
    answer = exact_json.loads_object(response.content) if response.status_code == 200 else None
    # A port can be taken over by another server after a writer's death; only its own answer counts.
    return answer if answer is not None and answer.get("writer_id") == writer.writer_id else None


@dataclass(slots=True)
class FoundCalls:
    """What the answers of several writers say of one rollout."""

    recorded: list[RecordedCall] = field(default_factory=list)
    open_call_ids: list[str] = field(default_factory=list)
    incomplete: bool = False
    tokens_lost: bool = False

    def take(self, entry: dict[str, Any]) -> None:
        """Add what one writer says."""
        self.recorded.extend(RecordedCall(*call) for call in entry["recorded"])
        self.open_call_ids.extend(entry["open"])
        self.incomplete = self.incomplete or entry["incomplete"]
        self.tokens_lost = self.tokens_lost or entry.get("tokens_lost", False)


def _combine(
    root: Path,
    rollout_ids: Sequence[str],
    answers: list[tuple[RegisteredWriter, dict[str, Any] | None]],
    unreadable: list[str],
    logless: list[str],
) -> dict[str, WrittenCalls]:
    found = {rollout_id: FoundCalls() for rollout_id in rollout_ids}
    answered, expected = set(), set(unreadable)
    for writer, answer in answers:
        if answer is None:
            if writer.url is not None:
                expected.add(writer.writer_id)
            continue
        answered.add(writer.writer_id)
        for rollout_id, entry in answer["rollouts"].items():
            found[rollout_id].take(entry)
    unreachable = (*_look_at_silent_writers(root, answered, expected, found), *logless)
    # The dead come last: a silent writer that dies between the two looks is found twice, never in neither.
    lost = lost_calls_of_dead_writers(CaptureStore(root), rollout_ids)
    return {
        rollout_id: WrittenCalls(
            recorded=tuple(entry.recorded),
            open_call_ids=tuple(entry.open_call_ids),
            lost_call_ids=tuple(lost.get(rollout_id, ())),
            unreachable_writers=unreachable,
            marked_incomplete=entry.incomplete,
            tokens_lost=entry.tokens_lost,
        )
        for rollout_id, entry in found.items()
    }


def _look_at_silent_writers(
    root: Path, answered: set[str], expected: set[str], found: dict[str, FoundCalls]
) -> tuple[str, ...]:
    """Return the living writers that should have answered; one that cannot be asked tells by its log what is open."""
    unreachable = []
    for path in list_logs(root):
        open_calls = living_open_calls(path) if path.stem not in answered else None
        if open_calls is None:
            continue
        if path.stem in expected:
            unreachable.append(path.stem)
            continue
        for call_id, rollout_id in open_calls.items():
            if rollout_id in found:
                found[rollout_id].open_call_ids.append(call_id)
    return tuple(unreachable)
