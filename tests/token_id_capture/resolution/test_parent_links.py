from __future__ import annotations

import dataclasses

import pytest

from gym_ray.token_id_capture.lineage import LineageMatch, LineageResolution
from gym_ray.token_id_capture.packed import digest_packed, pack_token_ids
from gym_ray.token_id_capture.records import ParentResolutionStatus

MATCH = LineageMatch("a", pack_token_ids([1, 2]), digest_packed(pack_token_ids([1, 2])))


def test_a_match_gives_its_tokens_as_a_tuple() -> None:
    assert MATCH.cumulative_token_ids == (1, 2)


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
