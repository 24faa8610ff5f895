from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture.lineage import LineageMatch, LineageResolution
from gym_ray.token_id_capture.records import ParentResolutionStatus
from gym_ray.token_id_capture.token_arrays import digest_packed, pack_token_ids

MATCH = LineageMatch("a", pack_token_ids([1, 2]), digest_packed(pack_token_ids([1, 2])))


def test_a_match_gives_its_tokens_as_a_tuple() -> None:
    assert MATCH.cumulative_token_ids == (1, 2)


@pytest.mark.parametrize("form", [tuple, list, np.array, lambda ids: np.array(ids, np.uint64)])
def test_tokens_of_any_form_are_taken(form: Any) -> None:
    """B149: a lineage store of another make has tuples."""
    match = LineageMatch(model_call_id="a", cumulative_token_ids=form([1, 2]), digest=MATCH.digest, chain_hash="c")
    assert (match.tokens.tolist(), match.tokens.dtype, match.tokens.flags.writeable) == ([1, 2], np.uint32, False)
    assert (match.cumulative_token_ids, match.chain_hash) == ((1, 2), "c")
    assert pickle.loads(pickle.dumps(match)).cumulative_token_ids == (1, 2)


def test_a_read_only_array_is_shared() -> None:
    assert LineageMatch("a", MATCH.tokens, MATCH.digest).tokens is MATCH.tokens


@pytest.mark.parametrize("ids", [[-1], [0.5], "12", 7, [2**64]])
def test_what_is_no_sequence_of_tokens_is_no_match(ids: Any) -> None:
    with pytest.raises(ValueError, match=r"token ids?"):
        LineageMatch("a", ids, MATCH.digest)


def test_resolved_needs_a_match() -> None:
    with pytest.raises(ValueError, match="needs its match"):
        LineageResolution(ParentResolutionStatus.RESOLVED)


@pytest.mark.parametrize("status", [ParentResolutionStatus.ROOT, ParentResolutionStatus.UNRESOLVED])
def test_only_resolved_has_a_match(status: ParentResolutionStatus) -> None:
    with pytest.raises(ValueError, match=f"is {status} has no parent"):
        LineageResolution(status, MATCH)


def test_both_are_immutable() -> None:
    for value, field in ((MATCH, "digest"), (LineageResolution(ParentResolutionStatus.ROOT), "reason")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, "x")
