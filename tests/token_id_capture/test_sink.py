from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gym_ray.testing.token_sinks import NotingTokenSink, PlainTokenSink
from gym_ray.token_id_capture import sink as capture
from gym_ray.token_id_capture.extras import CallExtras
from gym_ray.token_id_capture.fingerprint import HashedItems
from gym_ray.token_id_capture.lineage import LineageMatch, LineageResolution, stamp_continuation
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry
from gym_ray.token_id_capture.resolution.memory_resolver import InMemoryLineageResolver
from gym_ray.token_id_capture.token_arrays import digest_packed, pack_token_ids

QUESTION = {"role": "user", "content": "q0"}
ARRAYS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
ANSWER = {"id": "resp_0", "choices": [{"message": {"role": "assistant", "content": "A0", **ARRAYS}}]}


@contextmanager
def running(context: capture.CaptureContext) -> Iterator[None]:
    token = capture.set_token_sink(context)
    try:
        yield
    finally:
        capture.reset_token_sink(token)


def entry(call_id: str = "c0", **members: Any) -> TokenEntry:
    content = [{"type": "output_text", "text": "A0"}]
    output = [{"type": "message", "role": "assistant", "content": content}]
    made = {"rollout_id": "r0", "model_call_id": call_id, "output_items": output, **ARRAYS, **members}
    return TokenEntry.model_validate(made)


def resolved(parent: list[int], call_id: str = "c0") -> LineageResolution:
    tokens = pack_token_ids(parent)
    match = LineageMatch(call_id, tokens, digest_packed(tokens), chain_hash="0" * 64)
    return LineageResolution(ParentResolutionStatus.RESOLVED, match)


async def test_outside_of_a_call_nothing_happens() -> None:
    assert capture.current_capture_context() is None
    await capture.resolve_parent([QUESTION])
    await capture.register_call_intent()
    await capture.capture_tokens(ANSWER, [QUESTION])
    await capture.commit_entry(entry())
    await capture.withdraw_call_intent()
    body: dict[str, Any] = {}
    assert not capture.apply_required_prefix(body)
    assert capture.prove_required_prefix(body, {})
    assert body == {}


async def test_two_requests_at_a_time_have_their_own_calls() -> None:
    token_sink = PlainTokenSink()

    async def request(call_id: str) -> None:
        with running(capture.CaptureContext("r0", call_id, token_sink)):
            await asyncio.sleep(0)
            await capture.capture_tokens(ANSWER, [QUESTION])

    await asyncio.gather(request("c0"), request("c1"))
    assert sorted(kept.model_call_id for kept in token_sink.entries) == ["c0", "c1"]
    assert capture.current_capture_context() is None


async def test_a_conversation_is_hashed_once_a_call() -> None:
    seen: list[object] = []

    class _Watching(InMemoryLineageResolver):
        async def resolve(self, rollout_id: str, request_items: Any) -> LineageResolution:
            seen.append(request_items)
            return await super().resolve(rollout_id, request_items)

    token_sink = PlainTokenSink()
    context = capture.CaptureContext("r0", "c0", token_sink, _Watching())
    items = [QUESTION, {"role": "assistant", "content": "A"}]
    with running(context):
        await capture.resolve_parent(items)
        hashed = context.request_items
        assert isinstance(hashed, HashedItems)
        await capture.capture_tokens(ANSWER, items)
    assert seen == [hashed]
    assert context.request_items is hashed
    assert token_sink.entries[0].continuation_context_len == 2


async def test_other_items_at_the_end_than_at_the_beginning_are_the_ones_stamped() -> None:
    token_sink = PlainTokenSink()
    context = capture.CaptureContext("r0", "c0", token_sink, InMemoryLineageResolver())
    with running(context):
        await capture.resolve_parent([QUESTION])
        await capture.capture_tokens(ANSWER, [{"role": "user", "content": "other"}])
    (kept,) = token_sink.entries
    other = stamp_continuation(entry(), [{"role": "user", "content": "other"}])
    assert kept.continuation_context_digest == other.continuation_context_digest


async def test_external_staging_captures_nothing_here() -> None:
    token_sink = NotingTokenSink()
    context = capture.CaptureContext("r0", "c0", token_sink, external_staging=True, parent_resolution=resolved([1]))
    with running(context):
        await capture.register_call_intent()
        body: dict[str, Any] = {}
        assert not capture.apply_required_prefix(body)
        await capture.capture_tokens(ANSWER, [QUESTION])
        await capture.withdraw_call_intent("gone")
    assert (token_sink.asked, body, context.committed) == ([], {}, False)


@pytest.mark.parametrize("response", [{"output": "text"}, {"output": ["x"]}, [], 5, object()])
async def test_an_answer_of_no_shape_marks_its_rollout(response: object) -> None:
    token_sink = NotingTokenSink()
    before = capture.capture_health_snapshot()["capture_failures"]
    with running(capture.CaptureContext("r0", "c0", token_sink)):
        await capture.capture_tokens(response)
    assert [ended[:3] for ended in token_sink.ended] == [("r0", "c0", "untrainable")]
    assert token_sink.ended[0][3].startswith("ids_missing: ")
    assert capture.capture_health_snapshot()["capture_failures"] == before


async def test_an_answer_that_cannot_be_dumped_marks_its_rollout() -> None:
    class _Broken:
        def model_dump(self) -> dict[str, Any]:
            raise RecursionError("too deep")

    token_sink = NotingTokenSink()
    before = capture.capture_health_snapshot()["capture_failures"]
    with running(capture.CaptureContext("r0", "c0", token_sink)):
        await capture.capture_tokens(_Broken())
    assert token_sink.ended == [("r0", "c0", "untrainable", "capture_failed: RecursionError: too deep")]
    assert capture.capture_health_snapshot()["capture_failures"] == before + 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"generation_token_ids": [2**64]}, "malformed_tokens"),
        ({"generation_token_ids": [1.5]}, "malformed_tokens"),
        ({"prompt_token_ids": "12"}, "malformed_tokens"),
        ({"generation_log_probs": [float("nan")]}, "non_finite_log_prob"),
        ({"generation_log_probs": [None]}, "malformed_tokens"),
        ({"generation_log_probs": [-0.5, -0.5]}, "length_mismatch"),
        ({"generation_log_probs": None}, "ids_missing"),
    ],
)
async def test_tokens_that_cannot_be_kept_mark_their_call(fields: dict[str, Any], reason: str) -> None:
    token_sink = NotingTokenSink()
    answer = {"output": [{"type": "message", **ARRAYS, **fields}]}
    with running(capture.CaptureContext("r0", "c0", token_sink)):
        await capture.capture_tokens(answer, [QUESTION])
    assert token_sink.entries == []
    assert [ended[3].partition(":")[0] for ended in token_sink.ended] == [reason]


async def test_an_engines_own_record_is_linked_in_a_copy() -> None:
    token_sink = PlainTokenSink()
    context = capture.CaptureContext("r0", "c1", token_sink, parent_resolution=resolved([1]), version_start=7)
    given = entry("c1", gym_ray={"ended_by": "eos", "later": 5})
    before = given.model_copy(deep=True)
    with running(context):
        await capture.commit_entry(given)
    assert given == before
    (kept,) = token_sink.entries
    assert (kept.prompt_is_delta, kept.prompt_token_ids, kept.parent_call_id, kept.cum_len) == (True, [2], "c0", 3)
    extras = CallExtras.of((kept.model_extra or {})["gym_ray"])
    assert (extras.ended_by, extras.version_start, dict(extras.unknown)) == ("eos", 7, {"later": 5})
    assert extras.chain_hash is not None
    assert context.committed


async def test_a_delta_of_an_engine_stands_on_the_parents_tokens() -> None:
    token_sink = NotingTokenSink()
    lineage = {"parent_call_id": "c0", "parent_resolution": "resolved", "prompt_is_delta": True}
    given = entry("c1", **lineage)
    with running(capture.CaptureContext("r0", "c1", token_sink)):
        await capture.commit_entry(given, resolved([7, 8]))
        await capture.commit_entry(given)
    (kept,) = token_sink.entries
    assert (kept.cum_len, kept.digest) == (5, digest_packed(pack_token_ids([7, 8, 1, 2, 3])))
    assert "delta prompt" in token_sink.ended[0][3]  # the second one, without a decision


async def test_a_record_of_another_call_is_not_kept() -> None:
    token_sink = NotingTokenSink()
    before = capture.capture_health_snapshot()["capture_failures"]
    context = capture.CaptureContext("r0", "c1", token_sink)
    with running(context):
        await capture.commit_entry(entry("c0"))
    assert (token_sink.entries, context.committed) == ([], False)
    assert [ended[:3] for ended in token_sink.ended] == [("r0", "c1", "untrainable")]
    assert capture.capture_health_snapshot()["capture_failures"] == before


async def test_items_that_come_with_an_engines_record_make_it_findable() -> None:
    resolver = InMemoryLineageResolver()
    with running(capture.CaptureContext("r0", "c0", PlainTokenSink(), resolver)):
        await capture.commit_entry(entry("c0"), request_items=[QUESTION])
    second = capture.CaptureContext("r0", "c1", PlainTokenSink(), resolver)
    with running(second):
        await capture.resolve_parent([QUESTION, {"role": "assistant", "content": "A0"}])
    assert (second.parent_call_id, second.parent_tokens) == ("c0", [1, 2, 3])


async def test_the_tokens_of_a_parent_are_a_new_list_each_time() -> None:
    context = capture.CaptureContext("r0", "c1", None, parent_resolution=resolved([1, 2]))
    context.parent_tokens.append(9)
    assert context.parent_tokens == [1, 2]


async def test_a_record_that_a_sink_refuses_is_a_counted_failure() -> None:
    token_sink = PlainTokenSink()
    token_sink.failures = {"put": OSError("disk"), "mark_incomplete": OSError("disk")}
    context = capture.CaptureContext("r0", "c0", token_sink)
    before = capture.capture_health_snapshot()["capture_failures"]
    with running(context):
        await capture.commit_entry(entry())
    assert not context.committed
    assert capture.capture_health_snapshot()["capture_failures"] == before + 1


@pytest.mark.parametrize(
    ("install", "installed", "part", "missing"),
    [
        (capture.install_token_sink, capture.installed_token_sink, PlainTokenSink(), "put, mark_incomplete, close"),
        (capture.install_token_source, capture.installed_token_source, None, "freeze, drop, close"),
        (
            capture.install_lineage_store,
            capture.installed_lineage_store,
            InMemoryLineageResolver(),
            "resolve, is_process_shared, close",
        ),
    ],
)
def test_what_is_installed_is_one_in_a_process(install: Any, installed: Any, part: Any, missing: str) -> None:
    try:
        if part is not None:
            install(part)
            assert installed() is part
        with pytest.raises(TypeError, match=f"object is no .*: it lacks {missing}"):
            install(object())
        assert installed() is part
    finally:
        install(None)
    assert installed() is None
