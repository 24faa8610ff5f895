"""Checks that a sink and a source keep what the protocols promise, and that resolvers see what a sink kept (B59).

For authors of backends: give it factories of clients over one backend, and it tells the first promise that is broken.
Every check works on a rollout of its own, through clients of its own, as processes would that do not know each other.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from gym_ray.token_id_capture.lineage import LineageResolver, stamp_continuation
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot, TokenSink, TokenSource
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry, stamp_lineage

__all__ = ["TokenConformanceError", "run_token_conformance"]

_WRITERS: Final = 32
_QUESTION: Final = {"role": "user", "content": "q0"}
_ANSWER: Final = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a0"}]}
_NEXT: Final = {"role": "user", "content": "q1"}


class TokenConformanceError(AssertionError):
    """A promise is broken.

    Args:
        check: Name of the check.
        problem: What was promised, and what happened.
    """

    def __init__(self, check: str, problem: str) -> None:
        super().__init__(check, problem)
        self.check, self.problem = check, problem

    def __str__(self) -> str:
        return f"{self.check}: {self.problem}"


async def run_token_conformance(
    new_sink: Callable[[], TokenSink],
    new_source: Callable[[], TokenSource],
    new_resolver: Callable[[], LineageResolver] | None = None,
) -> list[str]:
    """Run every check that applies, one after the other.

    Args:
        new_sink: Makes a client for writing; checks of its optional extensions run where it has them.
        new_source: Makes a client for reading the same backend.
        new_resolver: Makes a resolver over the same backend; None leaves lineage out.

    Returns:
        The names of the checks that passed, in order.

    Raises:
        TokenConformanceError: The first check that failed, whatever it raised.
    """
    clients, passed = _Clients(new_sink, new_source, new_resolver), []
    for check in _CHECKS:
        if check.needs and not await clients.have(check.needs):
            continue
        name = check.run.__name__.removeprefix("_")
        try:
            await check.run(clients, f"conformance-{secrets.token_hex(6)}")
        except Exception as error:
            problem = str(error) if type(error) is AssertionError else f"raised {type(error).__name__}: {error}"
            raise TokenConformanceError(name, problem) from error
        passed.append(name)
    return passed


@dataclass(frozen=True, slots=True)
class _Clients:
    """Makes fresh clients and closes them."""

    new_sink: Callable[[], TokenSink]
    new_source: Callable[[], TokenSource]
    new_resolver: Callable[[], LineageResolver] | None

    @asynccontextmanager
    async def sink(self) -> AsyncIterator[Any]:
        sink = self.new_sink()
        try:
            yield sink
        finally:
            await sink.close()

    @asynccontextmanager
    async def source(self) -> AsyncIterator[TokenSource]:
        source = self.new_source()
        try:
            yield source
        finally:
            await source.close()

    @asynccontextmanager
    async def resolver(self) -> AsyncIterator[LineageResolver]:
        assert self.new_resolver is not None
        resolver = self.new_resolver()
        try:
            yield resolver
        finally:
            await resolver.close()

    async def have(self, needs: str) -> bool:
        if needs == "resolver":
            return self.new_resolver is not None
        async with self.sink() as sink:
            return callable(getattr(sink, needs, None))

    async def put(self, *entries: TokenEntry) -> None:
        async with self.sink() as sink:
            for entry in entries:
                await sink.put(entry)

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        async with self.source() as source:
            return await source.freeze(rollout_id)

    async def drop(self, snapshot: TokenCaptureSnapshot, *, snapshot_id: str = "", later: int = 0) -> bool:
        async with self.source() as source:
            return await source.drop(
                snapshot.rollout_id,
                snapshot_id=snapshot_id or snapshot.snapshot_id,
                version=snapshot.version + later,
            )


def _record(rollout_id: str, call_id: str = "c0", **members: Any) -> TokenEntry:
    tokens = {"prompt_token_ids": [1, 2**32, 2**64 - 1], "generation_token_ids": [4, 5]}
    return TokenEntry(
        **{
            "rollout_id": rollout_id,
            "model_call_id": call_id,
            "model": "m",
            **tokens,
            "generation_log_probs": [-0.1, -1e-5],
            "output_items": [_ANSWER],
            "token_item_index": 0,
            "site": {"note": "kept as it is, ü included"},
            **members,
        }
    )


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise AssertionError(problem)


async def _raises(call: Awaitable[Any]) -> bool:
    try:
        await call
    except Exception:  # noqa: BLE001 - boundary: any refusal by somebody else's backend is one
        return True
    return False


def _call_ids(snapshot: TokenCaptureSnapshot) -> list[str]:
    return sorted(entry.model_call_id for entry in snapshot.entries)


async def _put_is_visible(clients: _Clients, rollout_id: str) -> None:
    records = [_record(rollout_id), _record(rollout_id, "c1", response_id="r1", created_at=1.5)]
    await clients.put(*records)
    snapshot = await clients.freeze(rollout_id)
    stored = {entry.model_call_id: entry.model_dump() for entry in snapshot.entries}
    _require(_call_ids(snapshot) == ["c0", "c1"], f"put c0 and c1, the snapshot holds {_call_ids(snapshot)}")
    for record in records:
        same = stored[record.model_call_id] == record.model_dump()
        _require(same, f"put {record.model_dump()}, the snapshot holds {stored[record.model_call_id]}")
    _require(not snapshot.incomplete, f"nothing was lost, the snapshot is incomplete: {snapshot.problems}")
    _require(bool(snapshot.snapshot_id), "the snapshot has no id")


async def _put_again_changes_nothing(clients: _Clients, rollout_id: str) -> None:
    await clients.put(_record(rollout_id), _record(rollout_id))
    await clients.put(_record(rollout_id))
    snapshot = await clients.freeze(rollout_id)
    _require(_call_ids(snapshot) == ["c0"], f"put c0 three times, the snapshot holds {_call_ids(snapshot)}")
    _require(not snapshot.incomplete, "an identical put made the rollout incomplete")


async def _conflict_shows(clients: _Clients, rollout_id: str) -> None:
    await clients.put(_record(rollout_id))
    async with clients.sink() as sink:
        refused = await _raises(sink.put(_record(rollout_id, generation_token_ids=[4, 6])))
    snapshot = await clients.freeze(rollout_id)
    said = refused or snapshot.incomplete
    _require(said, "another record of a call neither raised nor made the rollout incomplete")
    tokens = [entry.generation_token_ids for entry in snapshot.entries]
    _require(len(tokens) <= 1, f"one call has the records {tokens}")


async def _many_writers(clients: _Clients, rollout_id: str) -> None:
    call_ids = [f"c{number:02}" for number in range(_WRITERS)]
    await asyncio.gather(*[clients.put(_record(rollout_id, call_id)) for call_id in call_ids])
    snapshot = await clients.freeze(rollout_id)
    _require(
        _call_ids(snapshot) == call_ids, f"{_WRITERS} writers put a record, these are there: {_call_ids(snapshot)}"
    )


async def _mark_lasts(clients: _Clients, rollout_id: str) -> None:
    await clients.put(_record(rollout_id))
    before = await clients.freeze(rollout_id)
    async with clients.sink() as sink:
        await sink.mark_incomplete(rollout_id, "c1")
    after = await clients.freeze(rollout_id)
    _require(after.incomplete, "a mark behind the freeze does not show")
    _require(after.version != before.version, f"a mark left the version at {before.version}")
    _require(not await clients.drop(before), "a snapshot from before the mark could be dropped")
    _require(_call_ids(await clients.freeze(rollout_id)) == ["c0"], "the refused drop removed records")


async def _mark_comes_first(clients: _Clients, rollout_id: str) -> None:
    async with clients.sink() as sink:
        await sink.mark_incomplete(rollout_id)
    await clients.put(_record(rollout_id))
    snapshot = await clients.freeze(rollout_id)
    _require(snapshot.incomplete, "a mark before the first record does not show")


async def _freeze_is_stable(clients: _Clients, rollout_id: str) -> None:
    await clients.put(_record(rollout_id), _record(rollout_id, "c1"))
    one, other = await clients.freeze(rollout_id), await clients.freeze(rollout_id)
    same = (one.snapshot_id, one.version, _call_ids(one)) == (other.snapshot_id, other.version, _call_ids(other))
    _require(same, f"two snapshots of one rollout differ: {one} and {other}")


async def _late_put_shows(clients: _Clients, rollout_id: str) -> None:
    await clients.put(_record(rollout_id))
    snapshot = await clients.freeze(rollout_id)
    async with clients.sink() as sink:
        refused = await _raises(sink.put(_record(rollout_id, "late")))
    _require(refused or not await clients.drop(snapshot), "a put behind the freeze was taken and then dropped unseen")


async def _drop_is_conditional(clients: _Clients, rollout_id: str) -> None:
    await clients.put(_record(rollout_id))
    snapshot = await clients.freeze(rollout_id)
    _require(not await clients.drop(snapshot, snapshot_id="other"), "a drop under another snapshot's id was done")
    _require(not await clients.drop(snapshot, later=1), "a drop of another version was done")
    _require(_call_ids(await clients.freeze(rollout_id)) == ["c0"], "a refused drop removed records")
    _require(await clients.drop(snapshot), "the snapshot could not be dropped though nothing changed")


async def _begun_call_shows(clients: _Clients, rollout_id: str) -> None:
    async with clients.sink() as sink:
        await sink.begin_call(rollout_id, "c0")
        await sink.put(_record(rollout_id))
        await sink.begin_call(rollout_id, "c1")
    snapshot = await clients.freeze(rollout_id)
    _require(snapshot.incomplete, "a begun call without a record does not show")


async def _begun_call_is_satisfied(clients: _Clients, rollout_id: str) -> None:
    async with clients.sink() as sink:
        await sink.begin_call(rollout_id, "c0")
        await sink.put(_record(rollout_id))
    snapshot = await clients.freeze(rollout_id)
    _require(not snapshot.incomplete, "a begun call that has its record makes the rollout incomplete")


async def _withdrawn_call_is_forgotten(clients: _Clients, rollout_id: str) -> None:
    async with clients.sink() as sink:
        await sink.begin_call(rollout_id, "c0")
        await sink.begin_call(rollout_id, "c1")
        await sink.end_call(rollout_id, "c0", "withdrawn")
        await sink.put(_record(rollout_id, "c1"))
    snapshot = await clients.freeze(rollout_id)
    _require(not snapshot.incomplete, f"a withdrawn call makes the rollout incomplete: {snapshot.problems}")


async def _untrainable_call_says_why(clients: _Clients, rollout_id: str) -> None:
    async with clients.sink() as sink:
        await sink.begin_call(rollout_id, "c0")
        await sink.end_call(rollout_id, "c0", "untrainable", "usage_mismatch: 3 of 4 tokens")
    snapshot = await clients.freeze(rollout_id)
    _require(snapshot.incomplete, "an untrainable call does not show")
    told = [problem for problem in snapshot.problems if problem.model_call_id == "c0"]
    _require(any(problem.reason == "usage_mismatch" for problem in told), f"the reason is not among {told}")


async def _evidence_is_known(clients: _Clients, rollout_id: str) -> None:
    async with clients.sink() as sink:
        _require(not await sink.has_evidence(rollout_id), "a rollout that nothing was said about has evidence")
    await clients.put(_record(rollout_id))
    async with clients.sink() as sink:
        _require(await sink.has_evidence(rollout_id), "a rollout with a record has no evidence")


def _turn(rollout_id: str, call_id: str, items: Sequence[object], parent: TokenEntry | None = None) -> TokenEntry:
    """Return the stamped record of a call; the second one holds only what follows its parent."""
    prompt, generation = ([7, 8], [9]) if parent is None else ([10], [11])
    entry = _record(
        rollout_id,
        call_id,
        prompt_token_ids=prompt,
        generation_token_ids=generation,
        generation_log_probs=[-0.5],
    )
    if parent is None:
        return stamp_continuation(stamp_lineage(entry, None, ParentResolutionStatus.ROOT), items)
    entry.prompt_is_delta = True
    whole = [*parent.prompt_token_ids, *parent.generation_token_ids, *prompt, *generation]
    stamp_lineage(entry, parent.model_call_id, ParentResolutionStatus.RESOLVED, whole)
    return stamp_continuation(entry, items)


async def _check_lineage(clients: _Clients, rollout_id: str, resolver: LineageResolver) -> None:
    async def expect(items: list[Any], status: ParentResolutionStatus, tokens: tuple[int, ...] | None) -> None:
        found = await resolver.resolve(rollout_id, items)
        resolved = found.match and found.match.cumulative_token_ids
        said = f"{items} is {found.status} ({found.reason}) with parent tokens {resolved}, not {status} with {tokens}"
        _require(found.status is status and resolved == tokens, said)

    root = _turn(rollout_id, "c0", [_QUESTION])
    await clients.put(root)
    second = [_QUESTION, _ANSWER, _NEXT]
    await expect(second, ParentResolutionStatus.RESOLVED, (7, 8, 9))
    rewritten = {**_QUESTION, "content": "another"}
    await expect([rewritten, _ANSWER, _NEXT], ParentResolutionStatus.UNRESOLVED, None)
    await expect([rewritten], ParentResolutionStatus.ROOT, None)
    await clients.put(_turn(rollout_id, "c1", second, root))
    await expect([*second, _ANSWER, _NEXT], ParentResolutionStatus.RESOLVED, (7, 8, 9, 10, 11))


async def _open_resolver_sees_puts(clients: _Clients, rollout_id: str) -> None:
    async with clients.resolver() as resolver:
        await resolver.resolve(rollout_id, [_QUESTION])
        await _check_lineage(clients, rollout_id, resolver)


class _FreshResolver:
    """A new resolver for every question."""

    def __init__(self, clients: _Clients) -> None:
        self._clients = clients

    async def resolve(self, rollout_id: str, request_items: Sequence[object]) -> Any:
        async with self._clients.resolver() as resolver:
            return await resolver.resolve(rollout_id, request_items)

    def is_process_shared(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing is held."""


async def _fresh_resolver_sees_puts(clients: _Clients, rollout_id: str) -> None:
    await _check_lineage(clients, rollout_id, _FreshResolver(clients))


@dataclass(frozen=True, slots=True)
class _Check:
    """One check, and the extension of a sink, or ``resolver``, without which it does not apply."""

    run: Callable[[_Clients, str], Awaitable[None]]
    needs: str = ""


_CHECKS: Final = (
    _Check(_put_is_visible),
    _Check(_put_again_changes_nothing),
    _Check(_conflict_shows),
    _Check(_many_writers),
    _Check(_mark_lasts),
    _Check(_mark_comes_first),
    _Check(_freeze_is_stable),
    _Check(_late_put_shows),
    _Check(_drop_is_conditional),
    _Check(_open_resolver_sees_puts, needs="resolver"),
    _Check(_fresh_resolver_sees_puts, needs="resolver"),
    _Check(_begun_call_shows, needs="begin_call"),
    _Check(_begun_call_is_satisfied, needs="begin_call"),
    _Check(_withdrawn_call_is_forgotten, needs="end_call"),
    _Check(_untrainable_call_says_why, needs="end_call"),
    _Check(_evidence_is_known, needs="has_evidence"),
)
