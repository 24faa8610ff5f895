"""Resolvers over kept records: the file store's, and the base that other backends fill in."""

from __future__ import annotations

import asyncio
import fcntl
import json
import multiprocessing
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import StaleCursorError
from gym_ray.testing.scripted_calls import ScriptedConversation, assistant, scripted_call, user
from gym_ray.token_id_capture.lineage import (
    CachedLineageResolver,
    ConversationCache,
    FetchedEntries,
    FileLineageResolver,
    LineageResolution,
    LineageResolver,
)
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry
from gym_ray.token_id_capture.store import Cursor, TokenCaptureStore

FEW_SHOT = [user("q0"), assistant("example"), user("q1")]
FORMS = pytest.mark.parametrize(("delta", "chained"), [(True, True), (True, False), (False, False)], ids=str)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TokenCaptureStore]:
    opened = TokenCaptureStore(tmp_path / "tokens")
    yield opened
    await opened.close()


@pytest.fixture
async def resolver(store: TokenCaptureStore) -> AsyncIterator[FileLineageResolver]:
    opened = FileLineageResolver(store)
    yield opened
    await opened.close()


def says(resolution: LineageResolution) -> str:
    return resolution.match.model_call_id if resolution.match else resolution.reason or str(resolution.status)


def lines_of(store: TokenCaptureStore, rollout_id: str = "r0") -> Path:
    return store.root / f"{rollout_id}.tokens.jsonl"


class TestFiles:
    @FORMS
    async def test_what_was_put_is_found_at_once(
        self, store: TokenCaptureStore, resolver: FileLineageResolver, delta: bool, chained: bool
    ) -> None:
        """B47."""
        assert isinstance(resolver, LineageResolver)
        assert resolver.is_process_shared()
        conversation = ScriptedConversation(delta=delta, chained=chained)
        for turn in range(6):
            await store.put(conversation.call())
            resolution = await resolver.resolve("r0", conversation.items)
            assert says(resolution) == f"c{turn}"
            assert resolution.match is not None
            assert resolution.match.tokens.tolist() == conversation.tokens

    @FORMS
    async def test_a_fresh_resolver_finds_all_of_it(
        self, store: TokenCaptureStore, resolver: FileLineageResolver, delta: bool, chained: bool
    ) -> None:
        conversation = ScriptedConversation(delta=delta, chained=chained)
        for _ in range(30):
            await store.put(conversation.call())
        resolution = await resolver.resolve("r0", conversation.items)
        assert resolution.match is not None
        assert resolution.match.tokens.tolist() == conversation.tokens
        assert says(await resolver.resolve("r0", conversation.items[:7])) == "c2"

    async def test_two_servers_on_one_directory_see_each_others_puts(self, store: TokenCaptureStore) -> None:
        other = TokenCaptureStore(store.root)
        resolvers = FileLineageResolver(store), FileLineageResolver(other)
        conversation = ScriptedConversation()
        for turn in range(8):
            await (store, other)[turn % 2].put(conversation.call())
            for resolver in resolvers:
                assert says(await resolver.resolve("r0", conversation.items)) == f"c{turn}"
        for closing in (*resolvers, other):
            await closing.close()

    async def test_only_new_bytes_are_read(self, store: TokenCaptureStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """W4: the bare way reads, checks and copies a whole record of the parent's length again at every look-up."""
        read: list[int] = []
        read_since = store.read_since

        def counting(rollout_id: str, cursor: Cursor | None) -> Any:
            found = read_since(rollout_id, cursor)
            read.append(len(found.entries))
            return found

        monkeypatch.setattr(store, "read_since", counting)
        resolver, conversation = FileLineageResolver(store), ScriptedConversation()
        for _ in range(5):
            await store.put(conversation.call())
            for _ in range(2):
                await resolver.resolve("r0", conversation.items)
        assert read == [1, 0] * 5
        await resolver.close()

    async def test_an_unresolved_look_up_waits_for_no_writer(
        self, store: TokenCaptureStore, resolver: FileLineageResolver
    ) -> None:
        """W14: the bare way takes the exclusive lock that this writer holds."""
        conversation = ScriptedConversation()
        await store.put(conversation.call())
        with (store.root / "r0.tokens.lock").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            async with asyncio.timeout(10):
                assert says(await resolver.resolve("r0", FEW_SHOT)) == "no_match"
                assert says(await resolver.resolve("r0", conversation.items)) == "c0"

    async def test_looking_up_creates_nothing(self, store: TokenCaptureStore, resolver: FileLineageResolver) -> None:
        """W36."""
        await resolver.resolve("unknown", FEW_SHOT)
        await resolver.resolve("unknown", [user("q")])
        assert list(store.root.iterdir()) == []

    async def test_a_line_without_its_end_is_not_there_yet(
        self, store: TokenCaptureStore, resolver: FileLineageResolver
    ) -> None:
        conversation = ScriptedConversation()
        await store.put(conversation.call())
        second = conversation.call()
        line = json.dumps(second.model_dump(mode="json")).encode() + b"\n"
        with lines_of(store).open("ab") as file:
            file.write(line[:-20])
            file.flush()
            assert says(await resolver.resolve("r0", conversation.items)) == "no_match"
            file.write(line[-20:])
        assert says(await resolver.resolve("r0", conversation.items)) == "c1"

    @pytest.mark.parametrize("how", ["replaced", "cut", "deleted"])
    async def test_a_file_that_is_another_one_is_read_from_the_start(
        self, store: TokenCaptureStore, resolver: FileLineageResolver, how: str
    ) -> None:
        old = ScriptedConversation()
        for _ in range(3):
            await store.put(old.call())
        assert says(await resolver.resolve("r0", old.items)) == "c2"
        path = lines_of(store)
        lines = path.read_bytes().splitlines(keepends=True)
        if how == "deleted":
            store.delete("r0")
        elif how == "cut":
            path.write_bytes(lines[0])
        else:
            fresh = path.with_name("fresh")
            fresh.write_bytes(lines[0])
            os.replace(fresh, path)
        assert says(await resolver.resolve("r0", old.items)) == ("seeded_root" if how == "deleted" else "no_match")
        if how == "deleted":
            return
        assert says(await resolver.resolve("r0", old.items[:3])) == "c0"
        other = scripted_call("c1", old.items[:3], [assistant("else")], [9], [9], delta=False)
        with path.open("ab") as file:
            file.write(json.dumps(other.model_dump(mode="json")).encode() + b"\n")
        assert says(await resolver.resolve("r0", [*old.items[:3], assistant("else"), user("n")])) == "c1"

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda record: record.update(digest="0" * 64), "'c1'"),
            (lambda record: record.update(generation_token_ids=[1, 1, 1]), "'c1'"),
            (lambda record: record.update(parent_call_id="gone"), "parent 'gone' is missing"),
            (lambda record: record.update(parent_call_id="c1"), "in a circle"),
        ],
        ids=["digest", "token", "missing_parent", "circle"],
    )
    async def test_a_forged_record_is_nobodys_parent(
        self, store: TokenCaptureStore, resolver: FileLineageResolver, change: Any, message: str
    ) -> None:
        conversation = ScriptedConversation()
        for _ in range(2):
            await store.put(conversation.call())
        first, second = map(json.loads, lines_of(store).read_bytes().splitlines())
        change(second)
        lines_of(store).write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in (first, second)))
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                await resolver.resolve("r0", conversation.items)
        assert says(await resolver.resolve("r0", conversation.items[:3])) == "c0"

    async def test_two_records_of_a_call_that_differ_make_the_rollout_unusable(
        self, store: TokenCaptureStore, resolver: FileLineageResolver
    ) -> None:
        conversation = ScriptedConversation()
        await store.put(conversation.call())
        record = json.loads(lines_of(store).read_bytes())
        line = json.dumps({**record, "generation_token_ids": [5, 5, 5]}).encode() + b"\n"
        with lines_of(store).open("ab") as file:
            file.write(line)
        for _ in range(2):
            with pytest.raises(ValueError, match="r0: call 'c0' has two records that differ"):
                await resolver.resolve("r0", conversation.items)
        lines_of(store).write_bytes(json.dumps(record).encode() + b"\n")
        assert says(await resolver.resolve("r0", conversation.items)) == "c0"

    async def test_a_damaged_line_is_left_out(self, store: TokenCaptureStore, resolver: FileLineageResolver) -> None:
        conversation = ScriptedConversation()
        await store.put(conversation.call())
        with lines_of(store).open("ab") as file:
            file.write(b'{"half": \n')
        second = conversation.call()
        with lines_of(store).open("ab") as file:
            file.write(json.dumps(second.model_dump(mode="json")).encode() + b"\n")
        assert says(await resolver.resolve("r0", conversation.items)) == "c1"

    async def test_many_tasks_may_ask_about_one_rollout_at_once(
        self, store: TokenCaptureStore, resolver: FileLineageResolver
    ) -> None:
        conversation, cache = ScriptedConversation(), ConversationCache()
        for turn in range(10):
            await store.put(conversation.call())
            hashed = [cache.hashed("r0", conversation.items[: 2 * at + 3]) for at in range(turn + 1)]
            found = await asyncio.gather(*(resolver.resolve("r0", items) for items in hashed * 3))
            assert [says(resolution) for resolution in found] == [f"c{at}" for at in range(turn + 1)] * 3

    async def test_a_forgotten_rollout_is_read_again(self, store: TokenCaptureStore) -> None:
        resolver = FileLineageResolver(store, max_rollouts=1)
        conversations = {name: ScriptedConversation(name) for name in ("x", "y")}
        for turn in range(4):
            for name, conversation in conversations.items():
                await store.put(conversation.call())
                resolution = await resolver.resolve(name, conversation.items)
                assert says(resolution) == f"c{turn}"
        await resolver.close()

    @pytest.mark.parametrize("bound", ["max_rollouts", "max_tokens"])
    async def test_bounds_are_positive(self, store: TokenCaptureStore, bound: str) -> None:
        with pytest.raises(ValueError, match=f"{bound} must be at least 1, not -1"):
            FileLineageResolver(store, **{bound: -1})

    async def test_what_cannot_name_a_file_is_refused(self, resolver: FileLineageResolver) -> None:
        with pytest.raises(ValueError, match="cannot name token files"):
            await resolver.resolve("../x", FEW_SHOT)

    async def test_closing_gives_the_threads_back(self, store: TokenCaptureStore) -> None:
        resolver = FileLineageResolver(store)
        await resolver.resolve("r0", FEW_SHOT)
        assert any(thread.name.startswith("lineage") for thread in threading.enumerate())
        await resolver.close()
        await resolver.close()
        assert not any(thread.name.startswith("lineage") for thread in threading.enumerate())
        with pytest.raises(RuntimeError, match="closed"):
            await resolver.resolve("r0", FEW_SHOT)


class TestSeededRoots:
    """W30: the bare rule calls every first request with model-authored turns unresolved."""

    async def test_a_first_request_with_examples_is_a_root(self, resolver: FileLineageResolver) -> None:
        resolution = await resolver.resolve("r0", FEW_SHOT)
        assert (resolution.status, resolution.reason) == (ParentResolutionStatus.ROOT, "seeded_root")

    @pytest.mark.parametrize("evidence", ["record", "unstamped", "intent", "mark", "frozen_and_dropped"])
    async def test_not_if_there_is_any_evidence(
        self, store: TokenCaptureStore, resolver: FileLineageResolver, evidence: str
    ) -> None:
        if evidence == "record":
            await store.put(ScriptedConversation().call())
        elif evidence == "unstamped":
            await store.put(ScriptedConversation().call().model_copy(update={"continuation_fingerprint": ""}))
        elif evidence == "intent":
            await store.begin_call("r0", "c0")
        elif evidence == "mark":
            await store.mark_incomplete("r0")
        else:
            await store.put(ScriptedConversation().call())
            snapshot = await store.freeze("r0")
            assert await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
        resolution = await resolver.resolve("r0", FEW_SHOT)
        assert (resolution.status, resolution.reason) == (ParentResolutionStatus.UNRESOLVED, "no_match")


def _serve(root: str, pipe: Any) -> None:
    """Another server process: puts what it is sent, looks up what it is asked."""

    async def run() -> None:
        store = TokenCaptureStore(root)
        resolver = FileLineageResolver(store)
        while (task := pipe.recv()) is not None:
            if isinstance(task, TokenEntry):
                await store.put(task)
                pipe.send("kept")
            else:
                pipe.send(says(await resolver.resolve("r0", task)))
        await resolver.close()
        await store.close()

    asyncio.run(run())


async def test_another_process_sees_what_was_put_and_the_other_way_round(
    store: TokenCaptureStore, resolver: FileLineageResolver
) -> None:
    """B47."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(str(store.root), theirs))
    process.start()
    try:
        conversation = ScriptedConversation()
        for turn in range(6):
            entry = conversation.call()
            if turn % 2:
                ours.send(entry)
                assert await asyncio.to_thread(ours.recv) == "kept"
            else:
                await store.put(entry)
            ours.send(conversation.items)
            assert await asyncio.to_thread(ours.recv) == f"c{turn}"
            assert says(await resolver.resolve("r0", conversation.items)) == f"c{turn}"
        ours.send(None)
        await asyncio.to_thread(process.join, 20)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


class Backend(CachedLineageResolver):
    """Records in a list; a cursor is a length, stale once the list was replaced."""

    def __init__(self, **bounds: int) -> None:
        super().__init__(**bounds)
        self.records: list[TokenEntry] = []
        self.elsewhere: dict[str, TokenEntry] = {}
        self.fetched: list[int | None] = []
        self.loaded: list[str] = []
        self.locked = self.locks = 0

    def fetch_since(self, rollout_id: str, cursor: int | None) -> FetchedEntries:
        assert self.locked
        self.fetched.append(cursor)
        if cursor is not None and cursor > len(self.records):
            raise StaleCursorError
        return FetchedEntries(self.records[cursor or 0 :], len(self.records))

    def load_entry(self, rollout_id: str, model_call_id: str) -> TokenEntry | None:
        self.loaded.append(model_call_id)
        return self.elsewhere.get(model_call_id)

    @contextmanager
    def read_lock(self, rollout_id: str) -> Iterator[None]:
        self.locked += 1
        self.locks += 1
        yield
        self.locked -= 1


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    opened = Backend()
    yield opened
    await opened.close()


class TestOtherBackends:
    async def test_hooks_are_asked_for_what_is_new(self, backend: Backend) -> None:
        conversation = ScriptedConversation()
        for turn in range(3):
            backend.records.append(conversation.call())
            assert says(await backend.resolve("r0", conversation.items)) == f"c{turn}"
        assert backend.fetched == [None, 1, 2]
        assert (backend.locks, backend.locked, backend.loaded) == (3, 0, [])

    async def test_a_stale_cursor_begins_anew(self, backend: Backend) -> None:
        old, new = ScriptedConversation(), ScriptedConversation(tokens_per_turn=2)
        backend.records = [old.call(), old.call()]
        assert says(await backend.resolve("r0", old.items)) == "c1"
        backend.records = [new.call()]
        resolution = await backend.resolve("r0", new.items)
        assert resolution.match is not None
        assert resolution.match.tokens.tolist() == new.tokens
        assert backend.fetched == [None, 2, None]

    async def test_parents_kept_elsewhere_are_loaded_once(self, backend: Backend) -> None:
        conversation = ScriptedConversation()
        first, second, third = conversation.call(), conversation.call(), conversation.call()
        backend.elsewhere = {"c0": first, "c1": second}
        backend.records = [third]
        for _ in range(2):
            resolution = await backend.resolve("r0", conversation.items)
            assert resolution.match is not None
            assert resolution.match.tokens.tolist() == conversation.tokens
        assert backend.loaded == ["c1", "c0"]

    async def test_a_parent_that_is_nowhere_is_missing(self, backend: Backend) -> None:
        conversation = ScriptedConversation()
        conversation.call()
        backend.records = [conversation.call()]
        with pytest.raises(ValueError, match="parent 'c0' is missing"):
            await backend.resolve("r0", conversation.items)

    async def test_nobody_can_say_so_no_call_is_a_seeded_root(self, backend: Backend) -> None:
        assert says(await backend.resolve("r0", FEW_SHOT)) == "no_match"

    async def test_a_rollout_with_records_has_no_seeded_root_whatever_is_said_of_it(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def nothing(rollout_id: str) -> bool:
            return False

        monkeypatch.setattr(backend, "has_evidence", nothing)
        assert says(await backend.resolve("r0", FEW_SHOT)) == "seeded_root"
        backend.records = [ScriptedConversation().call()]
        assert says(await backend.resolve("r0", FEW_SHOT)) == "no_match"

    async def test_a_record_of_another_rollout_is_refused(self, backend: Backend) -> None:
        conversation = ScriptedConversation("other")
        backend.records = [conversation.call()]
        with pytest.raises(ValueError, match="'c0' is one of rollout 'other'"):
            await backend.resolve("r0", conversation.items)

    async def test_what_the_backend_raises_changes_nothing(self, backend: Backend) -> None:
        conversation = ScriptedConversation()
        backend.records = [conversation.call()]
        assert says(await backend.resolve("r0", conversation.items)) == "c0"
        records, backend.records = backend.records, None  # type: ignore[assignment]
        with pytest.raises(TypeError):
            await backend.resolve("r0", conversation.items)
        backend.records = records
        backend.locked = 0
        assert says(await backend.resolve("r0", conversation.items)) == "c0"

    async def test_packed_records_are_taken(self, backend: Backend) -> None:
        conversation = ScriptedConversation()
        packed: Sequence[Any] = [PackedEntry.of_entry(conversation.call())]
        backend.records = list(packed)
        assert says(await backend.resolve("r0", conversation.items)) == "c0"
