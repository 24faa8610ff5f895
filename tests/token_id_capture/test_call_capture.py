from __future__ import annotations

import asyncio
import logging
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gym_ray.errors import CaptureError
from gym_ray.testing.token_sinks import NotingTokenSink, PlainTokenSink
from gym_ray.token_id_capture.builder import run_builder
from gym_ray.token_id_capture.call_capture import CallCapture, TokenCapture
from gym_ray.token_id_capture.capturing import call_recorder
from gym_ray.token_id_capture.exact_tokens import ExactTokens, Untrainable
from gym_ray.token_id_capture.extras import CallExtras, WeightSpan, chain_hash
from gym_ray.token_id_capture.fingerprint import ConversationHasher
from gym_ray.token_id_capture.lineage import LineageMatch, LineageResolution
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry
from gym_ray.token_id_capture.request_items import RequestItems
from gym_ray.token_id_capture.resolution.memory_resolver import InMemoryLineageResolver
from gym_ray.token_id_capture.resolution.resolvers import FileLineageResolver
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_arrays import digest_packed, pack_log_probs, pack_token_ids

DEADLINE_S = 10.0
QUESTION = {"role": "user", "content": "q0"}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"id": f"resp {text}", "model": "served", "choices": [{"message": said(text)}]}


def tokens(prompt: Sequence[int], generation: Sequence[int], **members: Any) -> ExactTokens:
    log_probs = pack_log_probs([-0.5 - place for place in range(len(generation))])
    return ExactTokens(pack_token_ids(prompt), pack_token_ids(generation), log_probs, **members)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TokenCaptureStore]:
    opened = TokenCaptureStore(tmp_path)
    yield opened
    await opened.close()


@pytest.fixture
async def kept(store: TokenCaptureStore) -> AsyncIterator[TokenCapture]:
    """Capture into files, as a model server has it."""
    opened = TokenCapture(store, FileLineageResolver(store))
    yield opened
    await opened.aclose()


async def call(
    kept: TokenCapture,
    call_id: str,
    items: Sequence[object],
    text: str,
    outcome: ExactTokens,
    *,
    rollout_id: str = "r0",
) -> CallCapture:
    begun = kept.begin(rollout_id, call_id)
    await begun.resolve(items)
    await begun.intend()
    await begun.commit(answer(text), outcome)
    return begun


async def test_a_continuation_is_stored_as_what_its_parent_lacks(kept: TokenCapture, store: TokenCaptureStore) -> None:
    await call(kept, "c0", [QUESTION], "A0", tokens([1, 2], [3, 4], ended_by="eos"))
    second = kept.begin("r0", "c1", model="policy")
    await second.resolve([QUESTION, said("A0"), {"role": "user", "content": "q1"}])
    await second.intend()
    parent = second.parent
    assert parent is not None
    assert (parent.model_call_id, parent.token_ids.tolist(), parent.generated) == ("c0", [1, 2, 3, 4], 2)
    assert parent.ended_by == "eos"
    await second.commit(answer("A1"), tokens([1, 2, 3, 4, 5], [6], ended_by="length", constrained=True))

    first, delta = (PackedEntry.of_entry(entry) for entry in store.read_entries("r0"))
    assert (first.prompt_token_ids.tolist(), first.prompt_is_delta, first.model) == ([1, 2], False, "served")
    assert (delta.prompt_token_ids.tolist(), delta.prompt_is_delta, delta.model) == ([5], True, "policy")
    assert (delta.parent_call_id, delta.cum_len) == ("c0", 6)
    assert delta.digest == digest_packed(pack_token_ids([1, 2, 3, 4, 5, 6]))
    assert (delta.extras.ended_by, delta.extras.constrained, delta.extras.model_items) == ("length", True, 2)
    assert len(delta.extras.strict_context_digest) == 64
    root = chain_hash(None, first.digest or "", 4, first.prompt_token_ids, first.generation_token_ids)
    assert first.extras.chain_hash == root
    grown = chain_hash(root, delta.digest or "", 6, delta.prompt_token_ids, delta.generation_token_ids)
    assert delta.extras.chain_hash == grown
    assert kept.health.snapshot() == {
        "resolutions": {"root": 1, "resolved": 1, "unresolved": 0},
        "capture_failures": 0,
    }


async def test_a_rollout_that_begins_with_examples_is_whole(kept: TokenCapture, store: TokenCaptureStore) -> None:
    """W30: the peer masks it, for its first call continues nothing that was captured."""
    examples = [QUESTION, said("an example"), {"role": "user", "content": "q1"}]
    await call(kept, "c0", examples, "A0", tokens([1, 2, 3], [4]))
    await call(kept, "c1", [*examples, said("A0"), {"role": "user", "content": "q2"}], "A1", tokens([1, 2, 3, 4], [5]))
    await call(kept, "c2", [QUESTION, said("another example")], "A2", tokens([1, 2], [6]))
    first, second, stranger = (await store.freeze("r0")).packed
    assert (first.parent_resolution, first.parent_resolution_reason) == (ParentResolutionStatus.ROOT, "seeded_root")
    assert (second.parent_call_id, second.parent_resolution_reason) == ("c0", "")
    assert (stranger.parent_resolution, stranger.parent_resolution_reason) == (
        ParentResolutionStatus.UNRESOLVED,
        "no_match",
    )
    notes = run_builder([first, second]).notes
    assert (notes.roots, notes.chains, notes.unresolved_parent_calls) == (1, 1, [])


async def test_a_known_prefix_never_becomes_python_integers() -> None:
    """W5, B142: a list of 200,000 integers takes more than 7 MB."""
    sink, prefix = NotingTokenSink(), np.arange(1000, 201_000, dtype=np.uint32)
    prefix.flags.writeable = False
    kept = TokenCapture(
        sink, _Answers(LineageMatch("c0", prefix, digest_packed(prefix), chain_hash="0" * 64)), owns_resolver=False
    )
    begun = kept.begin("r0", "c1")
    await begun.resolve([QUESTION, said("A0")])
    outcome = tokens([*prefix.tolist(), 7, 8], [9])
    tracemalloc.start()
    try:
        await begun.commit(answer("A1"), outcome)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await kept.aclose()
    assert [entry.prompt_token_ids for entry in sink.entries] == [[7, 8]]
    assert peak < 4_000_000


async def test_large_records_are_made_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    make = call_recorder.build_record

    def watched(*arguments: Any, **members: Any) -> Any:
        names.append(threading.current_thread().name)
        return make(*arguments, **members)

    monkeypatch.setattr(call_recorder, "build_record", watched)
    sink = NotingTokenSink()
    kept = TokenCapture(sink, None)
    await call(kept, "small", [QUESTION], "A0", tokens(range(100), [1]))
    await call(kept, "large", [QUESTION], "A0", tokens(range(100_000), [1]))
    await kept.aclose()
    assert names[0] == threading.current_thread().name
    assert names[1].startswith("token-capture")
    assert [entry.cum_len for entry in sink.entries] == [101, 100_001]


@pytest.mark.parametrize(
    ("items", "on_thread"),
    [
        ([QUESTION], False),
        ([QUESTION] * 257, True),
        ([{"role": "user", "content": "x" * 262_145}], True),
        ([{"role": "user", "content": [{"type": "input_text", "text": "x" * 262_145}]}], True),
        ([{"role": "assistant", "content": "", "tool_calls": [{"id": "x" * 262_145}], "name": "m"}], True),
        ([{"type": "function_call", "call_id": "k", "name": "f", "arguments": "x" * 262_145}], True),
    ],
)
async def test_what_takes_long_to_hash_is_hashed_on_a_thread(
    items: list[object], on_thread: bool, hashing_threads: list[str]
) -> None:
    kept = TokenCapture(NotingTokenSink(), None)
    await kept.begin("r0", "c0").resolve(items)
    await kept.aclose()
    assert [name.startswith("token-capture") for name in hashing_threads] == [on_thread]


@pytest.mark.parametrize(
    ("history", "more", "on_thread"),
    [
        ([QUESTION] * 1000, [QUESTION] * 256, False),
        ([QUESTION] * 1000, [QUESTION] * 257, True),
        ([QUESTION, {"role": "user", "content": "x" * 800_000}], [{"role": "user", "content": "x" * 200_000}], False),
        ([QUESTION, {"role": "user", "content": "x" * 800_000}], [{"role": "user", "content": "x" * 262_145}], True),
        ([QUESTION] * 2048, [QUESTION], True),  # too much even to compare
        ([{"role": "user", "content": "x" * 1_048_576}], [QUESTION], True),
    ],
)
async def test_what_is_known_of_a_long_conversation_needs_no_thread(
    history: list[object], more: list[object], on_thread: bool, hashing_threads: list[str]
) -> None:
    kept = TokenCapture(NotingTokenSink(), None)
    await kept.begin("r0", "c0").resolve(history)
    await kept.begin("r0", "c1").resolve([*history, *more])
    await kept.aclose()
    assert [name.startswith("token-capture") for name in hashing_threads] == [True, on_thread]


async def test_a_long_text_input_is_hashed_on_a_thread_though_it_has_no_items(hashing_threads: list[str]) -> None:
    kept = TokenCapture(NotingTokenSink(), None)
    await kept.begin("r0", "c0").resolve(RequestItems([], "x" * 262_145))
    await kept.aclose()
    assert {name.startswith("token-capture") for name in hashing_threads} == {True}


@pytest.fixture
def hashing_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads on which items were hashed."""
    names: list[str] = []
    feed = ConversationHasher.feed

    def watched(hasher: ConversationHasher, items: Iterable[object]) -> None:
        names.append(threading.current_thread().name)
        feed(hasher, items)

    monkeypatch.setattr(ConversationHasher, "feed", watched)
    return names


@pytest.mark.parametrize("count", [3, 500])
async def test_long_conversations_are_found_like_short_ones(count: int) -> None:
    kept = TokenCapture(NotingTokenSink(), InMemoryLineageResolver())
    history = [QUESTION, *({"role": "user", "content": str(place)} for place in range(count))]
    await call(kept, "c0", history, "A0", tokens([1], [2]))
    second = await call(kept, "c1", [*history, said("A0")], "A1", tokens([1, 2, 3], [4]))
    await kept.aclose()
    assert second.resolution is not None
    assert second.resolution.status is ParentResolutionStatus.RESOLVED


async def test_full_prompts_are_kept_where_deltas_are_switched_off() -> None:
    sink = NotingTokenSink()
    kept = TokenCapture(sink, InMemoryLineageResolver(), delta_records=False)
    await call(kept, "c0", [QUESTION], "A0", tokens([1, 2], [3]))
    await call(kept, "c1", [QUESTION, said("A0")], "A1", tokens([1, 2, 3, 4], [5]))
    await kept.aclose()
    assert [(entry.prompt_token_ids, entry.prompt_is_delta) for entry in sink.entries] == [
        ([1, 2], False),
        ([1, 2, 3, 4], False),
    ]


async def test_a_delta_behind_a_record_without_chain_hash_has_none() -> None:
    """Its digest proves it, over the whole sequence; a hash over nothing would prove nothing (W3)."""
    sink, parent = NotingTokenSink(), pack_token_ids([1, 2])
    kept = TokenCapture(sink, _Answers(LineageMatch("c0", parent, digest_packed(parent))), owns_resolver=False)
    await call(kept, "c1", [QUESTION, said("A0")], "A1", tokens([1, 2, 3], [4]))
    await kept.aclose()
    (entry,) = map(PackedEntry.of_entry, sink.entries)
    assert (entry.prompt_is_delta, entry.extras.chain_hash) == (True, None)
    assert entry.digest == digest_packed(pack_token_ids([1, 2, 3, 4]))


async def test_a_prompt_rendered_anew_is_kept_whole_with_its_parent() -> None:
    sink = NotingTokenSink()
    kept = TokenCapture(sink, InMemoryLineageResolver())
    await call(kept, "c0", [QUESTION], "A0", tokens([1, 2], [3]))
    await call(kept, "c1", [QUESTION, said("A0")], "A1", tokens([1, 9, 3, 4], [5]))
    await kept.aclose()
    entry = sink.entries[1]
    assert (entry.parent_call_id, entry.prompt_is_delta, entry.prompt_token_ids) == ("c0", False, [1, 9, 3, 4])
    assert sink.ended == []


async def test_weight_versions_are_stamped_and_the_engines_own_are_kept() -> None:
    sink = NotingTokenSink()
    kept = TokenCapture(sink, None)
    kept.weight_version = "step-3"
    begun = kept.begin("r0", "c0")
    await begun.resolve([QUESTION])
    kept.weight_version = 4
    spans = (WeightSpan("step-3", 0, 1), WeightSpan("step-4", 1, 2))
    await begun.commit(answer("A0"), tokens([1], [2, 3], weight_spans=spans, token_in="render"))
    await kept.aclose()
    extras = CallExtras.of((sink.entries[0].model_extra or {})["gym_ray"])
    assert (extras.version_start, extras.version_end) == ("step-3", 4)
    assert extras.weight_spans == spans
    assert extras.token_in == "render"


async def test_ids_in_an_answer_are_not_looked_at_where_the_engine_reports_them_itself() -> None:
    """A client that asked for ids finds some of them in its message, which says nothing about those that count."""
    kept = TokenCapture(sink := NotingTokenSink(), None)
    begun = kept.begin("r0", "c0")
    await begun.resolve([QUESTION])
    await begun.intend()
    await begun.commit({"choices": [{"message": said("A0") | {"prompt_token_ids": [9]}}]}, tokens([1, 2], [3]))
    (entry,) = sink.entries
    assert (entry.prompt_token_ids, entry.generation_token_ids) == ([1, 2], [3])
    assert entry.output_items == [said("A0") | {"type": "message"}]
    await kept.aclose()


async def test_an_empty_generation_is_a_record_like_any_other(kept: TokenCapture, store: TokenCaptureStore) -> None:
    """B88: calls that continue it are linked through it."""
    await call(kept, "c0", [QUESTION], "A0", tokens([1, 2], []))
    snapshot = await store.freeze("r0")
    (entry,) = snapshot.packed
    assert (entry.generation_token_ids.size, entry.cum_len, snapshot.incomplete) == (0, 2, False)


@pytest.mark.parametrize("answered", [{"id": ""}, {"id": None}, {}])
async def test_an_answer_without_an_id_gets_none(answered: dict[str, Any]) -> None:
    """B85: an id that no client received would be a wrong witness of a rollout's end."""
    sink = NotingTokenSink()
    kept = TokenCapture(sink, None)
    await kept.begin("r0", "c0").commit({**answered, "choices": [{"message": said("A0")}]}, tokens([1], [2]))
    await kept.aclose()
    assert [entry.response_id for entry in sink.entries] == [None]


async def test_a_request_without_turns_of_the_model_is_a_root_that_nobody_is_asked_about() -> None:
    """B79: a lineage store that is away costs no first call its record."""
    sink = NotingTokenSink()
    kept = TokenCapture(sink, _Answers(OSError("gone")), owns_resolver=False)
    begun = await call(kept, "c0", [QUESTION], "A0", tokens([1], [2]))
    await kept.aclose()
    assert begun.resolution == LineageResolution(ParentResolutionStatus.ROOT)
    assert [entry.parent_resolution for entry in sink.entries] == [ParentResolutionStatus.ROOT]


async def test_an_unknown_version_leaves_no_stamp() -> None:
    sink = NotingTokenSink()
    kept = TokenCapture(sink, None)
    await call(kept, "c0", [QUESTION], "A0", tokens([1], [2]))
    await kept.aclose()
    assert not {"version_start", "version_end"} & (sink.entries[0].model_extra or {})["gym_ray"].keys()


async def test_what_a_patched_worker_put_into_the_answer_is_taken() -> None:
    sink = NotingTokenSink()
    kept = TokenCapture(sink, None)
    begun = kept.begin("r0", "c0")
    carried = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
    await begun.commit({"choices": [{"message": {**said("A0"), **carried}}]}, None)
    await kept.aclose()
    assert (sink.entries[0].prompt_token_ids, sink.entries[0].token_item_index) == ([1], 0)
    assert sink.entries[0].parent_resolution_reason == "not_attempted"


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (ExactTokens(pack_token_ids([1]), pack_token_ids([2]), np.array([np.nan])), "non_finite_log_prob"),
        (ExactTokens(pack_token_ids([1]), pack_token_ids([2]), np.array([-np.inf])), "non_finite_log_prob"),
        (ExactTokens(pack_token_ids([1]), pack_token_ids([2, 3]), pack_log_probs([-0.5])), "length_mismatch"),
        (ExactTokens(np.array([1, -2]), pack_token_ids([2]), pack_log_probs([-0.5])), "malformed_tokens"),  # type: ignore[arg-type]
        (ExactTokens(pack_token_ids([1]), np.array([0.5]), pack_log_probs([-0.5])), "malformed_tokens"),  # type: ignore[arg-type]
    ],
)
async def test_tokens_that_no_record_can_hold_mark_their_call(
    outcome: ExactTokens, reason: str, kept: TokenCapture, store: TokenCaptureStore
) -> None:
    """W21: such a record would make the whole rollout unreadable."""
    await call(kept, "c0", [QUESTION], "A0", outcome)
    await call(kept, "c1", [QUESTION], "A1", tokens([1], [2]))
    snapshot = await store.freeze("r0")
    assert [entry.model_call_id for entry in snapshot.packed] == ["c1"]
    assert snapshot.incomplete
    assert [(problem.reason, problem.model_call_id) for problem in snapshot.problems] == [(reason, "c0")]
    assert kept.health.snapshot()["capture_failures"] == 1


async def test_an_untrainable_answer_marks_its_rollout_with_the_reason(
    kept: TokenCapture, store: TokenCaptureStore
) -> None:
    begun = kept.begin("r0", "c0")
    await begun.intend()
    await begun.commit(answer("A0"), Untrainable("usage_mismatch", "5 ids, usage says 6"))
    snapshot = await store.freeze("r0")
    assert snapshot.incomplete
    assert [(p.reason, p.model_call_id, p.detail) for p in snapshot.problems] == [
        ("usage_mismatch", "c0", "5 ids, usage says 6")
    ]
    assert kept.health.counts().untrainable == {"usage_mismatch": 1}
    assert kept.health.snapshot()["capture_failures"] == 0


async def test_a_call_that_served_nothing_leaves_its_rollout_whole(
    kept: TokenCapture, store: TokenCaptureStore
) -> None:
    """W23: the peer masks a rollout for one backend error and a good retry."""
    failed = kept.begin("r0", "c0")
    await failed.resolve([QUESTION])
    await failed.intend()
    await failed.withdraw("the engine answered 500")
    await call(kept, "c1", [QUESTION], "A0", tokens([1], [2]))
    snapshot = await store.freeze("r0")
    assert not snapshot.incomplete
    assert [entry.model_call_id for entry in snapshot.packed] == ["c1"]


async def test_a_cancelled_call_leaves_its_note(kept: TokenCapture, store: TokenCaptureStore) -> None:
    started = asyncio.Event()

    async def served() -> None:
        begun = kept.begin("r0", "c0")
        await begun.resolve([QUESTION])
        await begun.intend()
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(served())
    await started.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    snapshot = await store.freeze("r0")
    assert snapshot.incomplete
    assert [problem.model_call_id for problem in snapshot.problems] == ["c0"]


async def test_the_first_record_of_a_call_stands(kept: TokenCapture, store: TokenCaptureStore) -> None:
    """W24: a second one, made a moment later, would conflict and mask the rollout."""
    begun = await call(kept, "c0", [QUESTION], "A0", tokens([1], [2]))
    await begun.commit(answer("A0"), tokens([1], [9]))
    await begun.untrainable(Untrainable("ids_missing"))
    await begun.withdraw("too late")
    snapshot = await store.freeze("r0")
    assert not snapshot.incomplete
    assert [entry.generation_token_ids.tolist() for entry in snapshot.packed] == [[2]]


async def test_sixty_four_calls_at_a_time_lose_nothing(kept: TokenCapture, store: TokenCaptureStore) -> None:
    async def rollout(number: int) -> None:
        rollout_id, history = f"r{number}", [QUESTION]
        prompt = [number]
        for turn in range(3):
            await call(kept, f"{number}-{turn}", history, f"A{turn}", tokens(prompt, [turn]), rollout_id=rollout_id)
            history = [*history, said(f"A{turn}"), {"role": "user", "content": f"q{turn}"}]
            prompt = [*prompt, turn, 50 + turn]

    await asyncio.gather(*(rollout(number) for number in range(64)))
    for number in range(64):
        snapshot = await store.freeze(f"r{number}")
        assert not snapshot.incomplete
        parents = {entry.model_call_id: entry.parent_call_id for entry in snapshot.packed}
        assert parents == {f"{number}-0": None, f"{number}-1": f"{number}-0", f"{number}-2": f"{number}-1"}
    assert kept.health.snapshot()["resolutions"] == {"root": 64, "resolved": 128, "unresolved": 0}


async def test_sixty_four_calls_of_one_rollout_lose_nothing(kept: TokenCapture, store: TokenCaptureStore) -> None:
    await asyncio.gather(*(call(kept, f"c{at}", [QUESTION], f"A{at}", tokens([1, 2], [at])) for at in range(64)))
    snapshot = await store.freeze("r0")
    assert not snapshot.incomplete
    assert {entry.model_call_id for entry in snapshot.packed} == {f"c{at}" for at in range(64)}


class _Answers:
    """A lineage store whose answer is fixed."""

    def __init__(self, found: LineageMatch | Exception | object) -> None:
        self._found = found

    async def resolve(self, rollout_id: str, request_items: Sequence[object]) -> Any:
        if isinstance(self._found, Exception):
            raise self._found
        if isinstance(self._found, LineageMatch):
            return LineageResolution(ParentResolutionStatus.RESOLVED, self._found)
        return self._found

    def is_process_shared(self) -> bool:
        return True

    async def close(self) -> None:
        raise OSError("the lineage store is stuck")

    def observe(self, entry: TokenEntry, cumulative: object) -> None:
        raise ValueError("not mine")


@pytest.mark.parametrize("found", [OSError("gone"), "resolved", None])
async def test_a_look_up_that_fails_is_an_unresolved_one(found: object) -> None:
    sink = NotingTokenSink()
    kept = TokenCapture(sink, _Answers(found), owns_resolver=False)
    begun = await call(kept, "c1", [QUESTION, said("A0")], "A1", tokens([1], [2]))
    await kept.aclose()
    assert begun.resolution is not None
    assert (begun.resolution.status, begun.resolution.reason) == (ParentResolutionStatus.UNRESOLVED, "lookup_error")
    assert [entry.parent_resolution_reason for entry in sink.entries] == ["lookup_error"]
    assert kept.health.snapshot() == {
        "resolutions": {"root": 0, "resolved": 0, "unresolved": 1},
        "capture_failures": 0,
    }


async def test_without_a_lineage_store_a_continuation_is_unresolved_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = TokenCapture(NotingTokenSink(), None)
    for call_id in ("c0", "c1"):
        begun = kept.begin("r0", call_id)
        await begun.resolve([QUESTION, said("A0")])
        assert begun.resolution is not None
        assert begun.resolution.reason == "resolver_unavailable"
    await kept.aclose()
    assert [record.message for record in caplog.records if "no lineage store" in record.message] == [
        "token capture has no lineage store: no call will find its parent"
    ]


async def test_items_that_cannot_be_hashed_lose_the_call_and_not_the_answer() -> None:
    sink = NotingTokenSink()
    kept = TokenCapture(sink, InMemoryLineageResolver())
    begun = await call(kept, "c0", [{"role": "user", "content": {5: 1}}], "A0", tokens([1], [2]))
    await kept.aclose()
    assert begun.resolution is not None
    assert begun.resolution.reason == "lookup_error"
    assert sink.entries == []
    assert [ended[:3] for ended in sink.ended] == [("r0", "c0", "untrainable")]


async def test_a_lineage_store_that_cannot_be_told_costs_no_record() -> None:
    sink, parent = NotingTokenSink(), pack_token_ids([1])
    kept = TokenCapture(sink, _Answers(LineageMatch("c0", parent, digest_packed(parent))), owns_resolver=False)
    begun = await call(kept, "c1", [QUESTION, said("A0")], "A1", tokens([1, 2], [3]))
    await kept.aclose()
    assert begun.context.committed
    assert (len(sink.entries), sink.ended) == (1, [])


async def test_a_lineage_store_of_another_make_may_have_tuples() -> None:
    sink = NotingTokenSink()
    store = _Answers(LineageMatch("c0", (1, 2), digest_packed(pack_token_ids([1, 2]))))
    kept = TokenCapture(sink, store, owns_resolver=False)
    begun = await call(kept, "c1", [QUESTION, said("A0")], "A1", tokens([1, 2, 3], [4]))
    await kept.aclose()
    assert begun.parent is not None
    assert begun.context.parent_tokens == begun.parent.token_ids.tolist() == [1, 2]
    assert [(entry.prompt_token_ids, entry.prompt_is_delta) for entry in sink.entries] == [([3], True)]


ENDINGS = {
    "commit": lambda begun: begun.commit(answer("A0"), tokens([1], [2])),
    "untrainable": lambda begun: begun.commit(answer("A0"), Untrainable("usage_missing")),
    "no tokens": lambda begun: begun.commit(answer("A0"), None),
    "withdraw": lambda begun: begun.withdraw("the engine answered 500"),
}


@pytest.mark.parametrize("ending", sorted(ENDINGS))
@pytest.mark.parametrize("notes", [True, False])
async def test_a_call_from_before_its_rollout_began_anew_leaves_nothing_in_it(notes: bool, ending: str) -> None:
    # B71: what was cleared is of an attempt that is over, and a late record would be taken for one of the next
    sink = NotingTokenSink() if notes else PlainTokenSink()
    kept = TokenCapture(sink, InMemoryLineageResolver(), retry_interval_s=0.01)
    before, cancelled, other = kept.begin("r0", "c0"), kept.begin("r0", "c1"), kept.begin("r1", "c2")
    for each in (before, cancelled, other):
        await each.resolve([QUESTION])
        await each.intend()
    kept.forget("r0")
    after = kept.begin("r0", "c3")
    await after.resolve([QUESTION])
    await after.intend()
    sink.asked.clear()
    await ENDINGS[ending](before)
    cancelled.abandon()
    assert (sink.asked, kept.unmarked()) == ([], frozenset())
    await other.commit(answer("A2"), tokens([1], [3]))
    await after.commit(answer("A3"), tokens([1], [4]))
    await kept.aclose()
    assert [(entry.rollout_id, entry.model_call_id) for entry in sink.entries] == [("r1", "c2"), ("r0", "c3")]
    assert sink.marks == []


async def test_a_call_whose_rollout_begins_anew_before_it_is_noted_is_refused() -> None:
    sink = NotingTokenSink()
    kept = TokenCapture(sink, None)
    early = kept.begin("r0", "c0")
    await early.resolve([QUESTION])
    kept.forget("r0")
    with pytest.raises(CaptureError, match="r0: the rollout began anew"):
        await early.intend()
    assert sink.begun == []
    late = kept.begin("r0", "c1")
    sink.hanging = {"begin_call"}
    noting = asyncio.create_task(late.intend())
    await sink.reached.wait()
    kept.forget("r0")
    sink.released.set()
    with pytest.raises(CaptureError, match="r0: the rollout began anew"):
        await noting
    await kept.aclose()


@pytest.mark.parametrize("end", ["kept", "failed", "cancelled"])
async def test_a_record_that_is_being_written_when_its_rollout_begins_anew_marks_it(end: str) -> None:
    sink = NotingTokenSink()
    kept = TokenCapture(sink, None, retry_interval_s=0.01)
    begun = kept.begin("r0", "c0")
    await begun.intend()
    sink.reached.clear()
    sink.hanging = {"put"}
    writing = asyncio.create_task(begun.commit(answer("A0"), tokens([1], [2])))
    await sink.reached.wait()
    kept.forget("r0")
    if end == "failed":
        sink.failures = {"put": OSError("disk")}
    if end == "cancelled":
        writing.cancel()
    sink.released.set()
    await asyncio.wait({writing})
    assert await kept.settled("r0", DEADLINE_S)
    await kept.aclose()
    assert ("r0", "c0", "untrainable") in [ended[:3] for ended in sink.ended]
    assert "from before the rollout began anew" in " ".join(ended[3] for ended in sink.ended)


@pytest.mark.parametrize("notes", [True, False])
@pytest.mark.parametrize("failing", [("put",), ("put", "mark_incomplete", "end_call"), ("mark_incomplete", "end_call")])
async def test_nothing_raises_after_dispatch(notes: bool, failing: tuple[str, ...]) -> None:
    sink = NotingTokenSink() if notes else PlainTokenSink()
    kept = TokenCapture(sink, InMemoryLineageResolver(), retry_interval_s=0.01)
    begun = [kept.begin("r0", f"c{at}") for at in range(4)]
    for each in begun:
        await each.resolve([QUESTION])
        await each.intend()
    sink.failures = {method: OSError("disk") for method in failing}
    await begun[0].commit(answer("A0"), tokens([1], [2]))
    await begun[1].commit(answer("A1"), Untrainable("usage_missing"))
    await begun[2].commit("no answer", None)  # type: ignore[arg-type]  # whatever a server made of it
    await begun[3].withdraw("the engine answered 500")
    sink.failures = {}
    await kept.aclose()
    lost = {"c1", "c2"} | ({"c0"} if "put" in failing else set())
    marked = {call_id for _, call_id in sink.marks}
    if isinstance(sink, NotingTokenSink):
        marked |= {ended[1] for ended in sink.ended if ended[2] == "untrainable"}
    assert marked == lost


async def test_only_the_note_before_generation_may_refuse_a_call() -> None:
    sink = NotingTokenSink()
    sink.failures["begin_call"] = OSError("disk")
    kept = TokenCapture(sink, None)
    with pytest.raises(OSError, match="disk"):
        await kept.begin("r0", "c0").intend()
    await kept.aclose()


async def test_a_hanging_sink_holds_no_answer_for_ever() -> None:
    sink = NotingTokenSink()
    sink.hanging = {"put", "end_call"}
    kept = TokenCapture(sink, None, timeout_s=0.05, retry_interval_s=0.01)
    begun = kept.begin("r0", "c0")
    async with asyncio.timeout(DEADLINE_S):
        await begun.commit(answer("A0"), tokens([1], [2]))
    assert kept.unmarked() == {"r0"}
    assert kept.health.snapshot()["capture_failures"] == 1
    sink.hanging = set()
    assert await kept.settled("r0", DEADLINE_S)
    assert sink.ended == [("r0", "c0", "untrainable", sink.ended[0][3])]
    assert "did not end within 0.05 s" in sink.ended[0][3]
    await kept.aclose()


async def test_an_answer_that_waited_for_its_record_does_not_wait_for_its_mark_as_well() -> None:
    sink = NotingTokenSink()
    sink.hanging = {"put"}
    kept = TokenCapture(sink, None, timeout_s=0.05)
    begun = kept.begin("r0", "c0")
    await begun.commit(answer("A0"), tokens([1], [2]))
    assert sink.ended == []
    assert kept.unmarked() == {"r0"}
    await kept.aclose()
    assert [ended[:3] for ended in sink.ended] == [("r0", "c0", "untrainable")]


@pytest.mark.parametrize("examples", [[], [QUESTION, said("an example")]], ids=["plain", "few_shot"])
async def test_no_call_continues_one_of_cleared_evidence(store: TokenCaptureStore, examples: list[Any]) -> None:
    """The same questions have the same answers, so only the ids of the calls tell the two attempts apart."""
    kept = TokenCapture(store, InMemoryLineageResolver(has_evidence=store.has_evidence))
    for attempt in ("a", "b"):
        kept.forget("r0")
        store.delete("r0")
        asked = [*examples, QUESTION]
        await call(kept, f"{attempt}0", asked, "A0", tokens([1], [2]))
        begun = await call(kept, f"{attempt}1", [*asked, said("A0"), QUESTION], "A1", tokens([1, 2, 3], [4]))
        assert begun.parent is not None
        assert begun.parent.model_call_id == f"{attempt}0"
    out = run_builder(store.read_entries("r0"))
    assert [link.model_call_id for link in out.chains[0].links] == ["b0", "b1"]
    assert out.doubts == {}
    await kept.aclose()


async def test_a_lineage_store_that_cannot_forget_costs_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(InMemoryLineageResolver):
        def forget(self, rollout_id: str) -> None:
            raise RuntimeError(f"never {rollout_id}")

    kept = TokenCapture(NotingTokenSink(), Stubborn())
    kept.forget("r0")
    assert "never r0" in caplog.text
    await kept.aclose()


async def test_marks_of_cleared_evidence_are_forgotten() -> None:
    sink = PlainTokenSink()
    sink.failures["mark_incomplete"] = OSError("no space left")
    kept = TokenCapture(sink, None, retry_interval_s=60.0)
    kept.mark_soon("r0")
    kept.forget("r0")
    assert kept.unmarked() == frozenset()
    await kept.aclose()
    assert sink.marks == []


async def test_a_note_that_hangs_refuses_the_call() -> None:
    sink = NotingTokenSink()
    sink.hanging = {"begin_call"}
    kept = TokenCapture(sink, None, timeout_s=0.05)
    with pytest.raises(TimeoutError, match="begin_call"):
        await kept.begin("r0", "c0").intend()
    await kept.aclose()


async def test_a_sink_without_extensions_gets_records_and_marks_and_nothing_else() -> None:
    sink = PlainTokenSink()
    kept = TokenCapture(sink, InMemoryLineageResolver())
    await call(kept, "c0", [QUESTION], "A0", tokens([1], [2]))
    other = kept.begin("r0", "c1")
    await other.intend()
    await other.untrainable(Untrainable("usage_missing"))
    failed = kept.begin("r0", "c2")
    await failed.intend()
    await failed.withdraw("the engine answered 500")
    await kept.aclose()
    assert sink.asked == ["put", "mark_incomplete", "close"]
    assert sink.marks == [("r0", "c1")]


async def test_a_sink_that_takes_no_withdrawals_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class _Notes(PlainTokenSink):
        async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
            await self._asked("begin_call")

    kept = TokenCapture(_Notes(), None)
    begun = kept.begin("r0", "c0")
    await begun.intend()
    await begun.withdraw("the engine answered 500")
    await kept.aclose()
    assert "_Notes takes no withdrawals" in caplog.text


async def test_a_sink_that_cannot_mark_is_said_loudly(caplog: pytest.LogCaptureFixture) -> None:
    class _NoMark:
        async def put(self, entry: TokenEntry) -> None:
            raise OSError("disk")

        async def close(self) -> None:
            return None

    kept = TokenCapture(_NoMark(), None)  # type: ignore[arg-type]  # what a careless plug-in is
    await call(kept, "c0", [QUESTION], "A0", tokens([1], [2]))
    await kept.aclose()
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert ["may be trained on with tokens missing" in record.message for record in errors] == [True]


@pytest.mark.parametrize(("notes", "marks"), [(True, []), (False, [("r0", "c0")])])
async def test_an_abandoned_call_is_known_by_its_note_or_by_a_mark(notes: bool, marks: list[Any]) -> None:
    sink = NotingTokenSink() if notes else PlainTokenSink()
    kept = TokenCapture(sink, None)
    begun = kept.begin("r0", "c0")
    await begun.intend()
    begun.abandon()
    await kept.aclose()
    assert sink.marks == marks


@pytest.mark.parametrize("hanging", ["put", "mark_incomplete"])
async def test_a_call_that_is_cancelled_at_its_end_is_marked_where_no_note_tells_of_it(hanging: str) -> None:
    sink = PlainTokenSink()
    sink.hanging = {hanging}
    kept = TokenCapture(sink, None)
    outcome = tokens([1], [2]) if hanging == "put" else Untrainable("usage_missing")
    task = asyncio.create_task(kept.begin("r0", "c0").commit(answer("A0"), outcome))
    await asyncio.wait_for(sink.reached.wait(), DEADLINE_S)
    assert sink.asked == [hanging]
    task.cancel()
    assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
    sink.hanging = set()
    await kept.aclose()
    assert sink.marks == [("r0", "c0")]


async def test_a_mark_is_taken_over_at_once_and_durable_when_the_disk_recovered() -> None:
    sink = PlainTokenSink()
    sink.failures["mark_incomplete"] = OSError("no space left")
    kept = TokenCapture(sink, None, retry_interval_s=0.005)
    kept.mark_soon("r0")
    kept.mark_soon("r0")
    assert kept.unmarked() == {"r0"}
    async with asyncio.timeout(DEADLINE_S):
        while len(sink.asked) < 2:
            assert not await kept.settled("r0", 0.01)
    del sink.failures["mark_incomplete"]
    assert await kept.settled("r0", DEADLINE_S)
    assert (sink.marks, kept.unmarked()) == ([("r0", "")], frozenset())
    await kept.aclose()


async def test_a_mark_that_came_last_is_made_before_the_end(tmp_path: Path) -> None:
    store = TokenCaptureStore(tmp_path)
    kept = TokenCapture(store, FileLineageResolver(store))
    kept.mark_soon("r0", "c9")
    await kept.aclose()
    again = TokenCaptureStore(tmp_path)
    assert again.is_incomplete("r0")
    await again.close()


async def test_a_mark_that_cannot_be_made_is_named_at_the_end() -> None:
    sink = PlainTokenSink()
    sink.failures["mark_incomplete"] = OSError("no space left")
    kept = TokenCapture(sink, None)
    kept.mark_soon("r0")
    kept.mark_soon("r1", "c1")
    with pytest.raises(CaptureError, match="could not be marked incomplete, mask them: r0, r1"):
        await kept.aclose()
    assert sink.closed == 1


async def test_a_rollout_that_was_handed_over_is_marked_no_more(
    kept: TokenCapture, store: TokenCaptureStore, caplog: pytest.LogCaptureFixture
) -> None:
    await call(kept, "c0", [QUESTION], "A0", tokens([1], [2]))
    snapshot = await store.freeze("r0")
    assert await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    kept.mark_soon("r0")
    assert await kept.settled("r0", DEADLINE_S)
    assert "is not marked, and will not be" in caplog.text


async def test_without_a_sink_nothing_is_kept_and_nothing_fails(caplog: pytest.LogCaptureFixture) -> None:
    kept = TokenCapture(None, InMemoryLineageResolver())
    begun = await call(kept, "c0", [QUESTION], "A0", tokens([1], [2]))
    assert begun.context.committed
    other = kept.begin("r0", "c1")
    await other.commit(answer("A1"), Untrainable("usage_missing"))
    await other.withdraw("gone")
    kept.mark_soon("r0")
    assert "no sink to mark it in" in caplog.text
    await kept.aclose()


async def test_closing_closes_what_is_owned_and_can_be_repeated() -> None:
    owned, lent = PlainTokenSink(), PlainTokenSink()
    for sink, owns in ((owned, True), (lent, False)):
        kept = TokenCapture(sink, None, owns_sink=owns)
        await kept.aclose()
        await kept.aclose()
    assert (owned.closed, lent.closed) == (1, 0)


async def test_a_part_that_cannot_be_closed_keeps_no_other_open() -> None:
    sink = PlainTokenSink()
    kept = TokenCapture(sink, _Answers(None))
    with pytest.raises(OSError, match="the lineage store is stuck"):
        await kept.aclose()
    assert sink.closed == 1


async def _continued(fail: bool, outcome: ExactTokens) -> tuple[CallCapture, NotingTokenSink, TokenCapture]:
    sink = NotingTokenSink()
    kept = TokenCapture(sink, InMemoryLineageResolver(), fail_unproven_prefix=fail)
    await call(kept, "c0", [QUESTION], "A0", tokens([1, 2], [3]))
    begun = await call(kept, "c1", [QUESTION, said("A0")], "A1", outcome)
    await kept.aclose()
    return begun, sink, kept


async def test_a_supplied_prefix_is_kept_as_proved() -> None:
    outcome = tokens([1, 2, 3, 4], [5], prefix_requested=True, prefix_supplied=True, token_in="completion")
    begun, sink, kept = await _continued(True, outcome)
    entry = sink.entries[1]
    assert (entry.prefix_requested, entry.prefix_supplied, sink.ended) == (True, True, [])
    assert begun.refusal(outcome) is None
    counts = kept.health.prefix_counts()
    assert (counts.supplied, counts.eligible, counts.total) == (1, 1, 2)


@pytest.mark.parametrize(
    "outcome",
    [
        tokens([1, 2, 9, 4], [5], prefix_requested=True, prefix_supplied=True),
        tokens([1, 2, 3, 4], [5], prefix_requested=True),
        tokens([1, 2], [5], prefix_supplied=True),
    ],
)
async def test_a_prefix_that_is_only_claimed_is_kept_and_marked(outcome: ExactTokens) -> None:
    """W35: the record is evidence, and no row is made of it."""
    _, sink, _ = await _continued(False, outcome)
    entry = sink.entries[1]
    assert (entry.prefix_requested, entry.prefix_supplied) == (True, False)
    assert [(ended[1], ended[3].partition(":")[0]) for ended in sink.ended] == [("c1", "prefix_not_supplied")]


async def test_a_missing_proof_refuses_the_call_where_that_is_wanted() -> None:
    claimed = tokens([1, 9], [5], prefix_requested=True, prefix_supplied=True)
    said_so = Untrainable("prefix_not_supplied", "index 1 differs", prefix_requested=True)
    strict, _, _ = await _continued(True, tokens([1], [2]))
    lenient, _, _ = await _continued(False, tokens([1], [2]))
    assert strict.refusal(claimed) == "the engine did not prove the prefix it was given"
    assert strict.refusal(said_so) == "index 1 differs"
    assert strict.refusal(Untrainable("usage_missing", prefix_requested=True)) is None
    assert strict.refusal(tokens([1], [2])) is None
    assert strict.refusal(None) is None
    assert lenient.refusal(claimed) is lenient.refusal(said_so) is None
