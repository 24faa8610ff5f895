from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gym_ray.errors import StagedPrefixError
from gym_ray.inference_worker.prefixes import StagedPrefixes
from gym_ray.token_id_capture.staging.capture import RolloutTokenCapture
from gym_ray.token_id_capture.staging.memory_sink import MemoryStaging
from gym_ray.token_id_capture.staging.records import CaptureAdmission, CommitCoords, StagedCallBaseSnapshot


class Counting:
    """A source that counts what is read, and may answer something else."""

    def __init__(self, staging: MemoryStaging) -> None:
        self._staging = staging
        self.read: list[list[str]] = []
        self.instead: list[StagedCallBaseSnapshot] | None = None

    def fetch(self, staging_keys: Sequence[str]) -> list[StagedCallBaseSnapshot]:
        self.read.append(list(staging_keys))
        return self._staging.fetch(staging_keys) if self.instead is None else self.instead


class Chain:
    """A rollout whose calls each continue the one before."""

    def __init__(self, rollout_id: str = "0-0") -> None:
        self.staging = MemoryStaging()
        self.source = Counting(self.staging)
        self.capture = RolloutTokenCapture(self.staging, lambda: 7)
        self.coords: list[CommitCoords] = []
        self.tokens: list[int] = []
        self.rollout_id = rollout_id

    def turn(self, prompt: list[int], generated: list[int]) -> CommitCoords:
        admission = self.next_admission(f"call-{len(self.coords)}")
        call = self.capture.begin_call(admission, prefix_token_ids=list(self.tokens) or None)
        coords = self.capture.complete_call(
            call,
            prompt_token_ids=self.tokens + prompt,
            generated_token_ids=generated,
            generated_logprobs=[-0.5] * len(generated),
        )
        assert coords.disposition == "staged"
        self.coords.append(coords)
        self.tokens += prompt + generated
        return coords

    def next_admission(self, call_id: str, **changed: Any) -> CaptureAdmission:
        if not self.coords:
            return CaptureAdmission(rollout_id=self.rollout_id, model_call_id=call_id, mode="text")
        parent = self.coords[-1]
        facts = {
            "rollout_id": self.rollout_id,
            "model_call_id": call_id,
            "parent_call_id": parent.model_call_id,
            "prev_len": parent.cum_len,
            "mode": "token_in",
            "staging_chain": [coords.staging_key for coords in self.coords],
            "parent_chain_hash": parent.chain_hash,
        }
        return CaptureAdmission.model_validate({**facts, **changed})


@pytest.fixture
def chain() -> Chain:
    made = Chain()
    made.turn([1, 2, 3], [4, 5])
    made.turn([6], [7, 8, 9])
    return made


async def test_a_call_without_a_parent_has_no_prefix(chain: Chain) -> None:
    admission = CaptureAdmission(rollout_id="0-0", model_call_id="c", mode="text")
    assert await StagedPrefixes(chain.source).of(admission) is None


async def test_a_chain_gives_the_tokens_of_all_its_calls(chain: Chain) -> None:
    prefix = await StagedPrefixes(chain.source).of(chain.next_admission("next"))
    assert prefix is not None
    assert prefix.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert (prefix.model_call_id, prefix.generated) == ("call-1", 3)


async def test_what_is_known_is_not_read_again_and_only_the_rest_of_a_longer_chain_is(chain: Chain) -> None:
    prefixes = StagedPrefixes(chain.source)
    await prefixes.of(chain.next_admission("next"))
    await prefixes.of(chain.next_admission("sibling"))
    assert len(chain.source.read) == 1
    last = chain.turn([10], [11])
    prefix = await prefixes.of(chain.next_admission("later"))
    assert prefix is not None
    assert prefix.token_ids.tolist() == list(range(1, 12))
    assert chain.source.read[1:] == [[last.staging_key]]


async def test_ids_within_an_admission_need_no_storage(chain: Chain) -> None:
    inline = chain.next_admission("next", staging_chain=[], required_prefix_token_ids=chain.tokens)
    prefix = await StagedPrefixes(chain.source).of(inline)
    assert prefix is not None
    assert prefix.token_ids.tolist() == chain.tokens
    assert chain.source.read == []


@pytest.mark.parametrize(
    "changed",
    [
        {"prev_len": 8},
        {"parent_call_id": "call-0"},
        {"parent_chain_hash": "0" * 64},
        {"rollout_id": "1-0"},
    ],
    ids=lambda changed: next(iter(changed)),
)
@pytest.mark.parametrize("warm", [False, True])
async def test_a_chain_that_is_not_the_admitted_one_is_refused(chain: Chain, changed: Any, warm: bool) -> None:
    prefixes = StagedPrefixes(chain.source)
    if warm:
        await prefixes.of(chain.next_admission("next"))
    with pytest.raises(StagedPrefixError, match="call"):
        await prefixes.of(chain.next_admission("wrong", **changed))


@pytest.mark.parametrize("order", [[1, 0], [0, 0, 1], [1]], ids=["turned round", "one twice", "without its root"])
async def test_links_that_do_not_follow_from_each_other_are_refused(chain: Chain, order: list[int]) -> None:
    keys = [str(coords.staging_key) for coords in chain.coords]
    links = chain.staging.fetch(keys)
    chain.source.instead = [links[index] for index in order]
    with pytest.raises(StagedPrefixError, match="staged call"):
        await StagedPrefixes(chain.source).of(chain.next_admission("next"))


async def test_tokens_that_do_not_give_the_chain_hash_are_refused(chain: Chain) -> None:
    keys = [str(coords.staging_key) for coords in chain.coords]
    root, child = chain.staging.fetch(keys)
    other = child.model_copy(update={"chain_hash": root.chain_hash})
    chain.source.instead = [root, other]
    with pytest.raises(StagedPrefixError, match="do not give its chain hash"):
        await StagedPrefixes(chain.source).of(chain.next_admission("next"))


async def test_a_chain_that_cannot_be_read_names_its_calls_and_the_cause(chain: Chain) -> None:
    admission = chain.next_admission("next", staging_chain=["gone-1", "gone-2"])
    with pytest.raises(StagedPrefixError, match=r"gone-1 to gone-2 cannot be read: .*KeyError|gone-1"):
        await StagedPrefixes(chain.source).of(admission)


async def test_memory_is_bounded_and_what_was_forgotten_is_read_again(chain: Chain) -> None:
    prefixes = StagedPrefixes(chain.source, max_tokens=10)
    await prefixes.of(chain.next_admission("next"))
    assert prefixes.tokens == 9
    other = Chain("5-0")
    other.turn([1, 2], [3])
    elsewhere = await StagedPrefixes(other.source).of(other.next_admission("next"))
    assert elsewhere is not None
    prefixes.remember("elsewhere", elsewhere)
    assert prefixes.tokens == 3
    await prefixes.of(chain.next_admission("next"))
    assert len(chain.source.read) == 2
    assert prefixes.tokens == 9


async def test_prefixes_can_be_asked_for_by_many_threads(chain: Chain) -> None:
    prefixes = StagedPrefixes(chain.source, max_tokens=20)
    wrong: list[object] = []

    def ask() -> None:
        for number in range(200):
            found = prefixes._of_chain(chain.next_admission(f"c{number}"))
            if not np.array_equal(found.token_ids, chain.tokens):
                wrong.append(found)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert prefixes.tokens == 9
