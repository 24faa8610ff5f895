"""Tokens of a rollout's calls: shared, and proved before they are handed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gym_ray.testing.scripted_calls import ScriptedConversation, assistant, scripted_call, user
from gym_ray.token_id_capture.extras import CallExtras
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import MAX_DELTA_LINKS, ParentResolutionStatus, TokenEntry
from gym_ray.token_id_capture.resolution import held_calls
from gym_ray.token_id_capture.resolution.call_index import hashed_items
from gym_ray.token_id_capture.resolution.rollout_lineage import RolloutLineage
from gym_ray.token_id_capture.token_arrays import pack_token_ids

FORMS = pytest.mark.parametrize(
    ("delta", "chained"), [(True, True), (True, False), (False, True), (False, False)], ids=str
)


def lineage(entries: Sequence[TokenEntry]) -> RolloutLineage:
    held = RolloutLineage()
    for entry in entries:
        held.add(PackedEntry.of_entry(entry))
    return held


def played(turns: int, **form: bool) -> ScriptedConversation:
    conversation = ScriptedConversation(**form)
    for _ in range(turns):
        conversation.call()
    return conversation


def with_extras(entry: TokenEntry, **changes: Any) -> TokenEntry:
    """The record with members of ``gym_ray`` changed."""
    changed = entry.model_copy(deep=True)
    extras = CallExtras.of((entry.model_extra or {}).get("gym_ray"))
    changed.gym_ray = replace(extras, **changes).to_json()  # type: ignore[attr-defined]
    return changed


@FORMS
def test_every_call_of_a_chain_has_its_whole_sequence(delta: bool, chained: bool) -> None:
    conversation = played(5, delta=delta, chained=chained)
    held = lineage(conversation.entries)
    for turn, entry in enumerate(conversation.entries):
        match = held.match(f"c{turn}")
        assert match.cumulative_token_ids == tuple(conversation.tokens[: 6 * (turn + 1)])
        assert (match.digest, match.generated) == (entry.digest, 3)


@FORMS
def test_a_chain_holds_its_tokens_once(delta: bool, chained: bool) -> None:
    """W4, W6, W12: a list a call would be 100 times the tokens of 100 turns."""
    conversation = played(100, delta=delta, chained=chained)
    held = lineage(conversation.entries)
    first, last = held.match("c0").tokens, held.match("c99").tokens
    assert last.base is held.match("c98").tokens.base
    assert np.array_equal(first, last[: first.size])
    assert held.weight < 2 * last.size + 300 * 100


def test_matches_are_read_only_and_stay_as_they_are() -> None:
    conversation = played(1)
    held = lineage(conversation.entries)
    view = held.match("c0").tokens
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 9
    held.add(PackedEntry.of_entry(conversation.call()))
    fork = scripted_call("fork", conversation.items, [], [7], [8], parent=held.match("c0"))
    held.add(PackedEntry.of_entry(fork))
    assert view.tolist() == conversation.tokens[:6]
    assert held.match("c1").cumulative_token_ids == tuple(conversation.tokens)
    assert held.match("fork").cumulative_token_ids == (*conversation.tokens[:6], 7, 8)


def test_a_request_resolves_to_the_parents_tokens() -> None:
    conversation = played(3)
    resolution = lineage(conversation.entries).resolve(hashed_items(conversation.items))
    assert resolution.status is ParentResolutionStatus.RESOLVED
    assert resolution.match is not None
    assert resolution.match.model_call_id == "c2"
    assert resolution.match.tokens.tolist() == conversation.tokens


def test_order_does_not_matter() -> None:
    conversation = played(6, delta=True)
    for entries in (conversation.entries[::-1], conversation.entries[3:] + conversation.entries[:3]):
        assert lineage(entries).match("c5").tokens.tolist() == conversation.tokens


def test_an_empty_generation_may_stand_in_a_chain() -> None:
    root = scripted_call("a", [user("q")], [assistant("A")], [1], [2])
    held = lineage([root])
    empty = scripted_call("b", [user("q"), assistant("A")], [], [3], [], parent=held.match("a"))
    held.add(PackedEntry.of_entry(empty))
    child = scripted_call("c", [user("q"), assistant("A")], [], [4], [5], parent=held.match("b"))
    held.add(PackedEntry.of_entry(child))
    assert held.match("c").cumulative_token_ids == (1, 2, 3, 4, 5)


class TestProof:
    def tampered(
        self, change: Callable[[TokenEntry], TokenEntry | None], *, at: int = 2, **form: bool
    ) -> RolloutLineage:
        entries = played(4, **form).entries
        copy = entries[at].model_copy(deep=True)
        return lineage([*entries[:at], change(copy) or copy, *entries[at + 1 :]])

    @FORMS
    def test_a_digest_changed_alone_is_seen(self, delta: bool, chained: bool) -> None:
        def forge(entry: TokenEntry) -> None:
            entry.digest = "0" * 64

        held = self.tampered(forge, delta=delta, chained=chained)
        with pytest.raises(ValueError, match="'c2'"):
            held.match("c2")
        assert held.match("c1").model_call_id == "c1"

    @FORMS
    def test_a_token_changed_alone_is_seen(self, delta: bool, chained: bool) -> None:
        def forge(entry: TokenEntry) -> None:
            entry.generation_token_ids = [*entry.generation_token_ids[:-1], 999]

        with pytest.raises(ValueError, match="'c2'"):
            self.tampered(forge, delta=delta, chained=chained).match("c2")

    @FORMS
    def test_a_length_changed_alone_is_seen(self, delta: bool, chained: bool) -> None:
        def forge(entry: TokenEntry) -> None:
            entry.cum_len = 5

        with pytest.raises(ValueError, match="claims 5 tokens and has 18"):
            self.tampered(forge, delta=delta, chained=chained).match("c2")

    @pytest.mark.parametrize("chained", [True, False])
    def test_a_parent_changed_alone_is_seen(self, chained: bool) -> None:
        def forge(entry: TokenEntry) -> None:
            entry.parent_call_id, entry.cum_len = "c0", 12

        with pytest.raises(ValueError, match="'c2'"):
            self.tampered(forge, delta=True, chained=chained).match("c2")

    @pytest.mark.parametrize("at", [0, 2])
    def test_a_chain_hash_changed_alone_is_seen(self, at: int) -> None:
        held = self.tampered(lambda entry: with_extras(entry, chain_hash="1" * 64), at=at, delta=True)
        with pytest.raises(ValueError, match=f"'c{at}'.*chain hash does not follow"):
            held.match("c3")

    @FORMS
    def test_what_stands_on_a_bad_delta_is_no_parent_either(self, delta: bool, chained: bool) -> None:
        def forge(entry: TokenEntry) -> None:
            entry.digest = "0" * 64

        held = self.tampered(forge, delta=delta, chained=chained)
        if delta:
            for _ in range(2):
                with pytest.raises(ValueError, match="'c2'"):
                    held.match("c3")
        else:
            assert held.match("c3").model_call_id == "c3"

    def test_a_delta_that_claims_no_digest_proves_nothing(self) -> None:
        def forge(entry: TokenEntry) -> None:
            entry.digest = None

        with pytest.raises(ValueError, match="claims no digest"):
            self.tampered(forge, delta=True, chained=False).match("c2")

    def test_a_whole_record_that_claims_no_digest_gets_one(self) -> None:
        conversation = played(1, chained=False)
        digest, conversation.entries[0].digest = conversation.entries[0].digest, None
        assert lineage(conversation.entries).match("c0").digest == digest

    def test_a_chained_delta_is_proved_in_its_own_length(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """W3, W4: the bare rule hashes the whole sequence at every look-up."""
        hashed: list[int] = []
        digest = held_calls.digest_packed
        monkeypatch.setattr(held_calls, "digest_packed", lambda ids: hashed.append(ids.size) or digest(ids))
        bound: list[int] = []
        chain = held_calls.chain_hash

        def counting(*args: Any) -> str:
            bound.append(args[3].size + args[4].size)
            return chain(*args)

        monkeypatch.setattr(held_calls, "chain_hash", counting)
        conversation = played(50)
        held = lineage(conversation.entries)
        for turn in range(50):
            held.match(f"c{turn}")
            held.match(f"c{turn}")
        assert hashed == []
        assert bound == [6] * 50

    def test_a_delta_on_a_record_without_chain_hash_is_hashed_whole_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        conversation = played(3)
        mixed = [with_extras(conversation.entries[0], chain_hash=None), *conversation.entries[1:]]
        hashed: list[int] = []
        digest = held_calls.digest_packed
        monkeypatch.setattr(held_calls, "digest_packed", lambda ids: hashed.append(ids.size) or digest(ids))
        held = lineage(mixed)
        for _ in range(2):
            assert held.match("c2").tokens.tolist() == conversation.tokens
        # Each of them: c0 has no chain hash, and those of c1 and c2 lead on from one that nobody can compute.
        assert hashed == [6, 12, 18]


class TestChains:
    def test_a_missing_parent_is_named(self) -> None:
        entries = played(3, delta=True).entries
        with pytest.raises(ValueError, match="'c2' holds a delta, and the record of its parent 'c1' is missing"):
            lineage([entries[0], entries[2]]).match("c2")

    def test_a_missing_parent_may_be_fetched(self) -> None:
        conversation = played(4, delta=True)
        entries = {entry.model_call_id: entry for entry in conversation.entries}
        asked: list[str] = []

        def load(call_ids: Sequence[str]) -> list[PackedEntry]:
            asked.extend(call_ids)
            return [PackedEntry.of_entry(entries[call_id]) for call_id in call_ids]

        held = RolloutLineage(load)
        held.add(PackedEntry.of_entry(conversation.entries[3]))
        for _ in range(2):
            assert held.match("c3").tokens.tolist() == conversation.tokens
        assert asked == ["c2", "c1", "c0"]

    def test_fetching_parents_ends(self) -> None:
        (entry,) = played(2, delta=True).entries[1:]
        asked: list[str] = []

        def load(call_ids: Sequence[str]) -> list[PackedEntry]:
            asked.extend(call_ids)
            update = {"model_call_id": call_ids[0], "parent_call_id": f"before-{len(asked)}"}
            return [PackedEntry.of_entry(entry.model_copy(update=update))]

        held = RolloutLineage(load)
        held.add(PackedEntry.of_entry(entry))
        with pytest.raises(ValueError, match="more than 10000 delta records"):
            held.match("c1")
        assert len(asked) == MAX_DELTA_LINKS

    def test_a_parent_that_comes_later_will_do(self) -> None:
        conversation = played(2, delta=True)
        held = lineage(conversation.entries[1:])
        with pytest.raises(ValueError, match="missing"):
            held.match("c1")
        held.add(PackedEntry.of_entry(conversation.entries[0]))
        assert held.match("c1").tokens.tolist() == conversation.tokens

    def test_a_circle_is_refused(self) -> None:
        entries = played(3, delta=True).entries
        entries[1].parent_call_id = "c2"
        with pytest.raises(ValueError, match=r"in a circle through 'c[12]'"):
            lineage(entries).match("c2")
        entries[2].parent_call_id = "c2"
        with pytest.raises(ValueError, match="in a circle through 'c2'"):
            lineage(entries).match("c2")

    @pytest.mark.parametrize("forwards", [True, False], ids=["as_they_came", "from_the_end"])
    def test_the_number_of_links_is_bounded(self, forwards: bool) -> None:
        conversation = ScriptedConversation(tokens_per_turn=1)
        root = conversation.call()
        extras = CallExtras.of((root.model_extra or {}).get("gym_ray"))
        entries = [PackedEntry.of_entry(root)]
        tokens, above = pack_token_ids([0, 1]), extras.chain_hash
        for link in range(1, MAX_DELTA_LINKS + 2):
            digest = f"{link:064x}"  # a claim that the chain hash binds
            above = held_calls.chain_hash(above, digest, 2 * (link + 1), tokens[:1], tokens[1:])
            rest = {
                "rollout_id": "r0",
                "model_call_id": f"c{link}",
                "parent_call_id": f"c{link - 1}",
                "parent_resolution": "resolved",
                "prompt_is_delta": True,
                "digest": digest,
                "cum_len": 2 * (link + 1),
                "gym_ray": {"chain_hash": above},
            }
            entries.append(PackedEntry(tokens[:1], tokens[1:], entries[0].generation_log_probs[:1], rest))
        held = RolloutLineage()
        for entry in entries if forwards else entries[::-1]:
            held.add(entry)
        if not forwards:
            with pytest.raises(ValueError, match="more than 10000 delta records"):
                held.match(f"c{MAX_DELTA_LINKS + 1}")
        assert held.match(f"c{MAX_DELTA_LINKS}").tokens.size == 2 * (MAX_DELTA_LINKS + 1)
        with pytest.raises(ValueError, match="more than 10000 delta records"):
            held.match(f"c{MAX_DELTA_LINKS + 1}")


class TestRepeats:
    @FORMS
    def test_the_same_record_twice_is_one(self, delta: bool, chained: bool) -> None:
        conversation = played(2, delta=delta, chained=chained)
        held = lineage([*conversation.entries, *conversation.entries])
        assert len(held) == 2
        assert held.resolve(hashed_items(conversation.items)).match is not None

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("continuation_fingerprint", "x"),
            ("digest", "y"),
            ("parent_call_id", "z"),
            ("generation_token_ids", [9, 9, 9]),
            ("prompt_token_ids", [9, 9, 9]),
        ],
    )
    @pytest.mark.parametrize("parent_known", [True, False])
    def test_another_record_of_the_call_is_refused(self, field: str, value: object, parent_known: bool) -> None:
        entries = played(2, delta=True).entries
        held = lineage(entries if parent_known else entries[1:])
        other = entries[1].model_copy(update={field: value})
        with pytest.raises(ValueError, match="'c1' has two records that differ"):
            held.add(PackedEntry.of_entry(other))

    def test_what_only_describes_may_differ(self) -> None:
        entry = played(1).entries[0]
        lineage([entry, entry.model_copy(update={"created_at": 5.0, "model": "other"})])


class TestHandedOverTokens:
    def test_a_delta_without_its_parent_stands_on_the_whole_sequence(self) -> None:
        conversation = played(3, delta=True)
        held = RolloutLineage()
        whole = pack_token_ids(conversation.tokens)
        for _ in range(2):
            held.add(PackedEntry.of_entry(conversation.entries[2]), whole)
        assert held.match("c2").tokens.tolist() == conversation.tokens
        child = PackedEntry.of_entry(conversation.call())
        held.add(child)
        assert held.match("c3").tokens.tolist() == conversation.tokens

    @pytest.mark.parametrize("parent_known", [True, False])
    @pytest.mark.parametrize("change", [lambda ids: [*ids[:-1], 999], lambda ids: ids[-3:]], ids=["token", "length"])
    def test_a_sequence_that_is_not_the_records_is_refused(
        self, parent_known: bool, change: Callable[[list[int]], list[int]]
    ) -> None:
        conversation = played(2, delta=True)
        held = lineage(conversation.entries[:1] if parent_known else [])
        with pytest.raises(ValueError, match="'c1': the cumulative tokens"):
            held.add(PackedEntry.of_entry(conversation.entries[1]), pack_token_ids(change(conversation.tokens)))
        assert len(held) == parent_known

    def test_a_wrong_beginning_is_seen_by_its_digest(self) -> None:
        conversation = played(2, delta=True)
        held = RolloutLineage()
        held.add(PackedEntry.of_entry(conversation.entries[1]), pack_token_ids([7, *conversation.tokens[1:]]))
        with pytest.raises(ValueError, match="its record claims"):
            held.match("c1")
