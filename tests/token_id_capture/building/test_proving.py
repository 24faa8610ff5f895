from __future__ import annotations

import pytest

from gym_ray.testing.token_rollouts import TokenRollout
from gym_ray.token_id_capture.builder import run_builder
from gym_ray.token_id_capture.building import proving
from gym_ray.token_id_capture.building.calls import gather
from gym_ray.token_id_capture.building.proving import prove_records
from gym_ray.token_id_capture.extras import chain_hash
from gym_ray.token_id_capture.token_arrays import TokenArray, digest_packed, pack_token_ids


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens of every sequence that was hashed as a whole."""
    sizes: list[int] = []

    def counting(ids: TokenArray) -> str:
        sizes.append(int(ids.size))
        return digest_packed(ids)

    monkeypatch.setattr(proving, "digest_packed", counting)
    return sizes


def line(turns: int, *, deltas: bool = True, chain_hashes: bool = True) -> TokenRollout:
    rollout = TokenRollout(deltas=deltas, chain_hashes=chain_hashes)
    parent = None
    for turn in range(turns):
        call_id = f"c{turn}"
        rollout.call(call_id, [turn, 7], [9, turn], parent)
        parent = call_id
    return rollout


def failures(rollout: TokenRollout, *whole: str) -> list[tuple[str, str]]:
    return prove_records(gather(rollout.packed()).calls, in_full=lambda call_id: call_id in whole)


@pytest.mark.parametrize("deltas", [True, False])
@pytest.mark.parametrize("chain_hashes", [True, False])
def test_honest_records_are_proved(deltas: bool, chain_hashes: bool) -> None:
    assert failures(line(5, deltas=deltas, chain_hashes=chain_hashes)) == []


def test_chained_deltas_are_hashed_once_as_a_whole(hashed: list[int]) -> None:
    for turns in (50, 100, 200):
        hashed.clear()
        failures(line(turns))
        assert sum(hashed) == 4 + 4 * turns  # the root, and the sequence of the last call


def test_the_named_end_is_hashed_as_a_whole_as_well(hashed: list[int]) -> None:
    failures(line(10), "c4")
    assert sorted(hashed) == [4, 20, 40]


def test_every_end_of_a_tree_is_hashed(hashed: list[int]) -> None:
    rollout = line(4)
    rollout.call("fork", [1], [2], "c1")
    failures(rollout)
    assert sorted(hashed) == [4, 10, 16]


@pytest.mark.parametrize("chain_hashes", [True, False])
@pytest.mark.parametrize("call_id", ["c0", "c2", "c4"])
def test_a_forged_digest_costs_the_record_that_claims_it(call_id: str, chain_hashes: bool) -> None:
    rollout = line(5, chain_hashes=chain_hashes)
    rollout.records[call_id]["digest"] = digest_packed(rollout.packed()[1].prompt_token_ids)
    code = "record_digest_mismatch" if call_id == "c0" else "delta_chain_unreconstructable"
    assert failures(rollout) == [(code, call_id)]


@pytest.mark.parametrize("call_id", ["c0", "c2", "c4"])
def test_a_forged_length_costs_the_record_that_claims_it(call_id: str) -> None:
    rollout = line(5)
    rollout.records[call_id]["cum_len"] += 1
    assert [failed for _, failed in failures(rollout)] == [call_id]


@pytest.mark.parametrize("array", ["prompt_token_ids", "generation_token_ids"])
def test_changed_tokens_cost_the_record_and_all_that_stands_on_it(array: str) -> None:
    rollout = line(5)
    rollout.records["c2"][array][0] += 1
    assert [failed for _, failed in failures(rollout)] == ["c2", "c3", "c4"]


def test_a_wrong_chain_hash_alone_is_settled_by_the_digest() -> None:
    rollout = line(5)
    rollout.records["c2"]["gym_ray"]["chain_hash"] = "f" * 64
    assert failures(rollout) == []


def test_digest_and_chain_hash_forged_together_fail_where_the_sequence_ends() -> None:
    honest, forged = line(5), TokenRollout()
    for call_id, record in honest.records.items():
        generation = [record["generation_token_ids"][0] + (call_id == "c2"), record["generation_token_ids"][1]]
        forged.call(call_id, record["prompt_token_ids"][-2:], generation, record["parent_call_id"])
    for call_id in ("c3", "c4"):  # what was written before somebody changed c2
        forged.records[call_id]["digest"] = honest.records[call_id]["digest"]
        forged.records[call_id]["gym_ray"] = honest.records[call_id]["gym_ray"]
    assert [failed for _, failed in failures(forged)] == ["c3", "c4"]


def claim(rollout: TokenRollout, call_id: str, digest: str | None) -> None:
    """Let a record claim a digest, with a chain hash that follows from it."""
    record = rollout.records[call_id]
    record["digest"] = digest
    record["gym_ray"]["chain_hash"] = chain_hash(
        rollout.records[record["parent_call_id"]]["gym_ray"]["chain_hash"],
        digest or "",
        record["cum_len"],
        pack_token_ids(record["prompt_token_ids"]),
        pack_token_ids(record["generation_token_ids"]),
    )


def test_a_chain_that_follows_from_stale_digests_still_needs_the_digest_at_its_end() -> None:
    rollout = line(3)
    for call_id in ("c1", "c2"):
        claim(rollout, call_id, "0" * 64)
    assert [failed for _, failed in failures(rollout)] == ["c1", "c2"]


def test_an_end_without_a_digest_rests_on_the_last_one_before_it() -> None:
    rollout = line(3)
    claim(rollout, "c2", None)
    assert failures(rollout) == []
    claim(rollout, "c1", "0" * 64)
    claim(rollout, "c2", None)
    assert [failed for _, failed in failures(rollout)] == ["c1", "c2"]


def test_records_without_any_claim_rest_on_their_base() -> None:
    rollout = line(3, chain_hashes=False)
    for record in rollout.records.values():
        record["digest"] = record["cum_len"] = None
    assert failures(rollout) == []
    rollout.records["c1"]["digest"] = "0" * 64
    assert [failed for _, failed in failures(rollout)] == ["c1", "c2"]


def test_a_delta_can_be_proved_behind_one_whose_digest_is_wrong() -> None:
    """Its own digest covers the tokens of both; the link between them is another matter."""
    rollout = line(3)
    rollout.records["c1"]["digest"] = "0" * 64
    assert [failed for _, failed in failures(rollout)] == ["c1"]
    out = run_builder(rollout.packed(), terminal_call_id="c2")
    assert out.notes.terminal_chain == "broken"
    assert out.doubts == {"c1": "delta_chain_unreconstructable", "c2": "parent_call_id_missing"}


def test_deltas_without_a_beginning_are_not_rebuilt() -> None:
    rollout = line(4)
    rollout.records["c1"]["parent_call_id"] = "c3"  # a circle
    assert [failed for _, failed in failures(rollout)] == ["c1", "c2", "c3"]
    del rollout.records["c1"]
    assert [failed for _, failed in failures(rollout)] == ["c2", "c3"]
    rollout.records["c2"]["parent_call_id"] = "c2"
    assert [failed for _, failed in failures(rollout)] == ["c2", "c3"]


def test_a_chain_of_deltas_has_a_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "MAX_DELTA_LINKS", 3)
    assert [failed for _, failed in failures(line(6))] == ["c4", "c5"]


def test_a_whole_record_with_a_forged_digest_makes_no_row() -> None:
    """The peer compares a child with what its parent claims, and builds a sequence that the model never saw."""
    rollout = TokenRollout(deltas=False)
    rollout.call("c1", [1, 2, 3], [10, 11])
    rollout.call("w", [4], [6], "c1")
    rollout.records["c1"]["generation_token_ids"] = [10, 12]  # its digest is of [1, 2, 3, 10, 11]
    out = run_builder(rollout.packed())
    assert out.doubts == {"c1": "record_digest_mismatch", "w": "parent_call_id_missing"}
    assert [[link.model_call_id for link in chain.links] for chain in out.chains] == [["w"]]
    assert run_builder(rollout.packed(), terminal_call_id="w").notes.terminal_chain == "broken"
