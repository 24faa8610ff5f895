from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gym_ray.testing.token_conformance import TokenConformanceError, run_token_conformance
from gym_ray.token_id_capture.lineage import InMemoryLineageResolver, LineageResolution
from gym_ray.token_id_capture.protocols import CaptureProblem, TokenCaptureSnapshot
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.resolution.resolvers import FileLineageResolver
from gym_ray.token_id_capture.store import TokenCaptureStore

PLAIN = [
    "put_is_visible",
    "put_again_changes_nothing",
    "conflict_shows",
    "many_writers",
    "mark_lasts",
    "mark_comes_first",
    "freeze_is_stable",
    "late_put_shows",
    "drop_is_conditional",
]
LINEAGE = ["open_resolver_sees_puts", "fresh_resolver_sees_puts"]
EXTENSIONS = [
    "begun_call_shows",
    "begun_call_is_satisfied",
    "withdrawn_call_is_forgotten",
    "untrainable_call_says_why",
    "evidence_is_known",
]


@dataclass
class Rollout:
    entries: list[TokenEntry] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)
    problems: list[CaptureProblem] = field(default_factory=list)
    frozen: bool = False
    freezes: int = 0
    version: int = 0


class Backend:
    """Rollouts in memory; keeps every promise but the one named by ``fault``."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.rollouts: dict[str, Rollout] = {}

    def rollout(self, rollout_id: str) -> Rollout:
        return self.rollouts.setdefault(rollout_id, Rollout())


class PlainClient:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def put(self, entry: TokenEntry) -> None:
        rollout, fault = self.backend.rollout(entry.rollout_id), self.backend.fault
        known = [one for one in rollout.entries if one.model_call_id == entry.model_call_id]
        if known and fault not in ("copies", "overwrites"):
            if known[0] == entry:
                return
            raise ValueError("another record")
        if known and fault == "overwrites":
            rollout.entries.remove(known[0])
        if rollout.frozen and fault != "late":
            raise RuntimeError("frozen")
        if fault != "loses" and not (fault == "loses_some" and len(rollout.entries) == 20):
            rollout.entries.append(entry.model_copy(deep=True))
        rollout.version += not rollout.frozen

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        rollout = self.backend.rollout(rollout_id)
        if self.backend.fault == "forgets_early_marks" and not rollout.entries:
            return
        rollout.problems.append(CaptureProblem("marked", model_call_id))
        rollout.version += self.backend.fault != "quiet_marks"

    async def close(self) -> None:
        pass

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        rollout, fault = self.backend.rollout(rollout_id), self.backend.fault
        if fault == "raises":
            raise OSError("no disk")
        rollout.frozen = True
        rollout.freezes += 1
        problems = list(rollout.problems)
        recorded = {entry.model_call_id for entry in rollout.entries} if fault != "unsatisfied" else set()
        if fault != "silent":
            problems += [CaptureProblem("begun", call_id) for call_id in rollout.begun - recorded]
        name = f"s{rollout.freezes}" if fault == "unstable" else "s"
        return TokenCaptureSnapshot(rollout_id, rollout.entries, bool(problems), name, rollout.version, problems)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        rollout = self.backend.rollout(rollout_id)
        is_current = version == rollout.version
        if self.backend.fault == "later_versions":
            is_current = version >= rollout.version
        if (snapshot_id != "s" or not is_current) and self.backend.fault != "unconditional":
            return False
        self.backend.rollouts[rollout_id] = Rollout(frozen=True)
        return True


class Client(PlainClient):
    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        self.backend.rollout(rollout_id).begun.add(model_call_id)

    async def end_call(self, rollout_id: str, model_call_id: str, outcome: str, reason: str = "") -> None:
        rollout = self.backend.rollout(rollout_id)
        if outcome == "withdrawn" and self.backend.fault != "remembers":
            rollout.begun.discard(model_call_id)
        if outcome == "untrainable":
            said = "lost" if self.backend.fault == "mumbles" else reason.partition(":")[0]
            rollout.problems.append(CaptureProblem(said, model_call_id))

    async def has_evidence(self, rollout_id: str) -> bool:
        return rollout_id in self.backend.rollouts or self.backend.fault == "imagines"


class Resolver(InMemoryLineageResolver):
    """Reads the backend's records anew for every question."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend

    async def resolve(self, rollout_id: str, request_items: Sequence[object]) -> LineageResolution:
        inner = InMemoryLineageResolver()
        for entry in self.backend.rollout(rollout_id).entries if self.backend.fault != "blind" else []:
            inner.observe(entry)
        found = await inner.resolve(rollout_id, request_items)
        await inner.close()
        return found


async def run(backend: Backend, client: type[PlainClient] = Client) -> list[str]:
    return await run_token_conformance(lambda: client(backend), lambda: client(backend), lambda: Resolver(backend))


async def test_our_store_keeps_every_promise(tmp_path: Path) -> None:
    stores: list[TokenCaptureStore] = []

    def resolver() -> FileLineageResolver:
        stores.append(TokenCaptureStore(tmp_path))
        return FileLineageResolver(stores[-1])

    def store() -> Any:
        return TokenCaptureStore(tmp_path)

    assert await run_token_conformance(store, store, resolver) == PLAIN + LINEAGE + EXTENSIONS
    for one in stores:
        await one.close()


async def test_lineage_and_extensions_are_checked_where_they_are_there() -> None:
    backend = Backend()
    assert await run(backend) == PLAIN + LINEAGE + EXTENSIONS
    plain = PlainClient(backend)
    assert await run_token_conformance(lambda: plain, lambda: plain) == PLAIN


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("loses", "put_is_visible"),
        ("raises", "put_is_visible"),
        ("copies", "put_again_changes_nothing"),
        ("overwrites", "conflict_shows"),
        ("loses_some", "many_writers"),
        ("quiet_marks", "mark_lasts"),
        ("forgets_early_marks", "mark_comes_first"),
        ("unstable", "freeze_is_stable"),
        ("late", "late_put_shows"),
        ("unconditional", "mark_lasts"),
        ("later_versions", "drop_is_conditional"),
        ("blind", "open_resolver_sees_puts"),
        ("silent", "begun_call_shows"),
        ("unsatisfied", "begun_call_is_satisfied"),
        ("remembers", "withdrawn_call_is_forgotten"),
        ("mumbles", "untrainable_call_says_why"),
        ("imagines", "evidence_is_known"),
    ],
)
async def test_the_first_broken_promise_is_named(fault: str, check: str) -> None:
    with pytest.raises(TokenConformanceError) as raised:
        await run(Backend(fault))
    assert raised.value.check == check
    assert raised.value.problem


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(TokenConformanceError("mark_lasts", "it did not")))
    assert (error.check, str(error)) == ("mark_lasts", "mark_lasts: it did not")
