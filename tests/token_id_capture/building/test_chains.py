from __future__ import annotations

import pytest

from gym_ray.testing.token_rollouts import TokenRollout
from gym_ray.token_id_capture.builder import run_builder
from gym_ray.token_id_capture.building.calls import Call
from gym_ray.token_id_capture.building.chains import Chain
from gym_ray.token_id_capture.packed import PackedEntry


def test_a_chain_gives_lists_and_arrays_of_the_same_tokens() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2, 3], [10, 11])
    rollout.call("c2", [4, 5], [12], "c1")
    (chain,) = run_builder(rollout.packed()).chains
    assert chain.root_prompt == chain.root_prompt_tokens.tolist() == [1, 2, 3]
    assert [link.interstitial for link in chain.links] == [[], [4, 5]]
    assert [link.interstitial_tokens.tolist() for link in chain.links] == [[], [4, 5]]
    assert [(link.start, link.prompt_len, link.cum_len) for link in chain.links] == [(3, 3, 5), (5, 7, 8)]
    assert [link.entry.model_dump(exclude_defaults=True) for link in chain.links] == [
        entry.model_dump(exclude_defaults=True) for entry in rollout.entries()
    ]
    assert (chain.generated, chain.token_ids().tolist()) == (3, rollout.sequences["c2"])
    assert repr(chain) == "Chain('main', ends_with='c2', 8 tokens)"


def test_many_branches_of_one_stem_are_spelled_out_only_when_looked_at() -> None:
    rollout = TokenRollout()
    rollout.call("stem", [1], [2])
    for number in range(50):
        rollout.call(f"b{number:02}", [3, number], [4], "stem")
    out = run_builder(rollout.packed())
    assert len(out.chains) == 50
    assert len({chain.chain_id for chain in out.chains}) == 50
    assert out.chains[0].links is out.chains[0].links


@pytest.mark.parametrize("changed", ["prompt_token_ids", "generation_token_ids"])
def test_a_chain_is_held_against_every_recorded_prompt_and_generation(changed: str) -> None:
    """The proof of a build is not trusted: what its links hold must be what its last call holds."""
    rollout = TokenRollout(deltas=False)
    rollout.call("c1", [1, 2, 3], [10, 11])
    rollout.call("c2", [4], [12], "c1")
    honest = [Call(record) for record in rollout.packed()]
    honest[1].parent = honest[0]
    Chain(honest[1]).validate()
    rollout.records["c1"][changed][0] += 1
    wrong = [Call(record) for record in rollout.packed()]
    wrong[1].parent = wrong[0]
    with pytest.raises(ValueError, match="'c1': its recorded tokens are not those of chain"):
        Chain(wrong[1]).validate()


def test_a_link_cannot_hold_less_than_its_records_whole_prompt() -> None:
    rollout = TokenRollout(deltas=False)
    rollout.call("c1", [1, 2], [3])
    rollout.call("c2", [4], [5], "c1")
    first, second = (Call(PackedEntry.of_json(record)) for record in rollout.records.values())
    second.parent, second.start = first, 1  # as if the whole prompt were a part
    with pytest.raises(ValueError, match="'c2'"):
        Chain(second).validate()
