from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from gym_ray.testing.scripted_calls import ScriptedConversation, assistant, scripted_call, user
from gym_ray.token_id_capture.lineage import InMemoryLineageResolver, LineageResolver
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import ParentResolutionStatus
from gym_ray.token_id_capture.token_arrays import pack_token_ids

FEW_SHOT = [user("q0"), assistant("example"), user("q1")]


async def parent(resolver: InMemoryLineageResolver, conversation: ScriptedConversation, rollout_id: str = "r0") -> str:
    """The parent's call id, or the reason why there is none."""
    resolution = await resolver.resolve(rollout_id, conversation.items)
    return resolution.match.model_call_id if resolution.match else resolution.reason


def played(turns: int, rollout_id: str = "r0", *, tokens_per_turn: int = 3) -> ScriptedConversation:
    conversation = ScriptedConversation(rollout_id, tokens_per_turn=tokens_per_turn)
    for _ in range(turns):
        conversation.call()
    return conversation


def test_it_is_a_resolver_of_one_process() -> None:
    resolver = InMemoryLineageResolver()
    assert isinstance(resolver, LineageResolver)
    assert not resolver.is_process_shared()


async def test_it_finds_what_it_was_told_of() -> None:
    resolver, conversation = InMemoryLineageResolver(), ScriptedConversation()
    assert (await resolver.resolve("r0", conversation.items)).status is ParentResolutionStatus.ROOT
    for turn in range(5):
        resolver.observe(conversation.call())
        resolution = await resolver.resolve("r0", conversation.items)
        assert resolution.match is not None
        assert resolution.match.model_call_id == f"c{turn}"
        assert resolution.match.tokens.tolist() == conversation.tokens
    assert (await resolver.resolve("r0", [user("a summary")])).status is ParentResolutionStatus.ROOT
    assert await parent(resolver, conversation, "other") == "no_match"


async def test_arrays_and_lists_of_records_and_of_tokens_are_taken() -> None:
    conversation = played(2)
    resolver = InMemoryLineageResolver()
    resolver.observe(PackedEntry.of_entry(conversation.entries[0]), conversation.tokens[:6])
    resolver.observe(conversation.entries[1], pack_token_ids(conversation.tokens))
    assert await parent(resolver, conversation) == "c1"


async def test_a_delta_needs_the_tokens_before_it() -> None:
    conversation = played(2)
    resolver = InMemoryLineageResolver()
    with pytest.raises(ValueError, match="its cumulative tokens are needed"):
        resolver.observe(conversation.entries[1])
    assert await parent(resolver, conversation) == "no_match"
    resolver.observe(conversation.entries[1], conversation.tokens)
    assert await parent(resolver, conversation) == "c1"


async def test_two_records_of_one_call_that_differ_are_refused() -> None:
    resolver = InMemoryLineageResolver()
    entry = played(1).entries[0]
    resolver.observe(entry)
    resolver.observe(entry)
    with pytest.raises(ValueError, match="two records that differ"):
        resolver.observe(entry.model_copy(update={"digest": "0" * 64}))


async def test_items_that_cannot_be_hashed_are_refused() -> None:
    with pytest.raises(ValueError, match="must be an object"):
        await InMemoryLineageResolver().resolve("r0", ["x"])


class TestSeededRoots:
    """W30: the bare rule calls every first request with model-authored turns unresolved."""

    @staticmethod
    def resolver(*known: str) -> InMemoryLineageResolver:
        async def has_evidence(rollout_id: str) -> bool:
            return rollout_id in known

        return InMemoryLineageResolver(has_evidence=has_evidence)

    async def test_a_first_request_with_examples_is_a_root(self) -> None:
        resolution = await self.resolver().resolve("r0", FEW_SHOT)
        assert (resolution.status, resolution.reason) == (ParentResolutionStatus.ROOT, "seeded_root")

    async def test_not_if_the_sink_knows_anything_of_the_rollout(self) -> None:
        resolution = await self.resolver("r0").resolve("r0", FEW_SHOT)
        assert (resolution.status, resolution.reason) == (ParentResolutionStatus.UNRESOLVED, "no_match")

    async def test_not_once_there_is_a_record(self) -> None:
        resolver = self.resolver()
        resolver.observe(scripted_call("a", [user("other")], [assistant("A")], [1], [2]))
        assert (await resolver.resolve("r0", FEW_SHOT)).reason == "no_match"

    async def test_not_if_nobody_can_say(self) -> None:
        assert (await InMemoryLineageResolver().resolve("r0", FEW_SHOT)).reason == "no_match"


class TestBounds:
    @pytest.mark.parametrize("bound", ["max_rollouts", "max_tokens"])
    def test_they_are_positive(self, bound: str) -> None:
        with pytest.raises(ValueError, match=f"{bound} must be at least 1, not 0"):
            InMemoryLineageResolver(**{bound: 0})

    async def test_the_rollout_used_last_stays(self) -> None:
        """W12: by age, ``x`` would go."""
        resolver = InMemoryLineageResolver(max_rollouts=2)
        conversations = {name: played(1, name) for name in "xyz"}
        for name in "xy":
            resolver.observe(conversations[name].entries[0])
        assert await parent(resolver, conversations["x"], "x") == "c0"
        resolver.observe(conversations["z"].entries[0])
        assert resolver.rollouts == ["x", "z"]
        assert await parent(resolver, conversations["y"], "y") == "no_match"

    async def test_asking_for_what_is_not_there_drives_nothing_out(self) -> None:
        resolver = InMemoryLineageResolver(max_rollouts=1)
        resolver.observe(played(1, "x").entries[0])
        await resolver.resolve("y", FEW_SHOT)
        assert resolver.rollouts == ["x"]

    async def test_a_long_chain_counts_its_tokens_once(self) -> None:
        """W12: a list a call would be 50 times 10,000 tokens on average, and drive the other rollout out."""
        resolver = InMemoryLineageResolver(max_tokens=60_000)
        resolver.observe(played(1, "other").entries[0])
        long = played(100, "long", tokens_per_turn=100)
        for entry in long.entries:
            resolver.observe(entry)
        assert resolver.rollouts == ["other", "long"]
        assert await parent(resolver, long, "long") == "c99"

    async def test_the_only_rollout_is_never_forgotten(self) -> None:
        resolver = InMemoryLineageResolver(max_tokens=1)
        conversation = played(3)
        for entry in conversation.entries:
            resolver.observe(entry)
        assert await parent(resolver, conversation) == "c2"

    async def test_too_many_tokens_drive_out_the_rollout_used_longest_ago(self) -> None:
        resolver = InMemoryLineageResolver(max_tokens=3_000)
        for name in "abc":
            resolver.observe(played(1, name, tokens_per_turn=500).entries[0])
        assert resolver.rollouts == ["b", "c"]


async def test_closing_forgets_and_can_be_repeated() -> None:
    resolver, conversation = InMemoryLineageResolver(), played(1)
    resolver.observe(conversation.entries[0])
    await resolver.close()
    await resolver.close()
    assert resolver.rollouts == []


async def test_threads_may_tell_and_ask_at_once() -> None:
    resolver = InMemoryLineageResolver(max_rollouts=3)
    conversations = [played(20, f"r{number}") for number in range(4)]

    def work(number: int) -> None:
        conversation = conversations[number % 4]
        for at, entry in enumerate(conversation.entries):
            cumulative = conversation.tokens[: 6 * (at + 1)]
            resolver.observe(entry, cumulative)
            resolution = asyncio.run(resolver.resolve(f"r{number % 4}", conversation.items[: 2 * at + 3]))
            if resolution.match is not None:  # it may have been forgotten, but is never wrong
                assert resolution.match.model_call_id == f"c{at}"
                assert resolution.match.tokens.tolist() == cumulative

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, number) for number in range(16)]:
            done.result()
    assert len(resolver.rollouts) <= 3
