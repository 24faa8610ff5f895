from __future__ import annotations

import json

import pytest

from gym_ray.errors import RolloutIdError
from gym_ray.token_id_capture.token_files.rollout_state import STATE_SUFFIX, RolloutState, check_store_rollout_id


def test_the_file_has_exactly_its_members_sorted() -> None:
    assert RolloutState(frozen=True, snapshot_id="s", version=3).to_bytes() == (
        b'{"entry_digests":{},"frozen":true,"incomplete":false,"indexed_size":0,"retired":false,"snapshot_id":"s",'
        b'"version":3}'
    )


def test_a_state_comes_back_with_members_that_are_unknown_here() -> None:
    data = json.dumps({"version": 7, "entry_digests": {"c0": "ab"}, "indexed_size": 9, "later": [1]}).encode()
    state = RolloutState.of_bytes(data)
    assert state == RolloutState(version=7, entry_digests={"c0": "ab"}, indexed_size=9, others={"later": [1]})
    assert state.has_index
    assert RolloutState.of_bytes(state.to_bytes()) == state
    assert not RolloutState().has_index


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "Expecting value"),
        (b'{"frozen":tr', "Expecting value"),
        (b"[]", "must be an object, not list"),
        (b"null", "must be an object, not NoneType"),
        (b'{"frozen":1}', "frozen must be of type bool"),
        (b'{"version":true}', "version must be of type int"),
        (b'{"version":"1"}', "version must be of type int"),
        (b'{"entry_digests":[]}', "entry_digests must be of type dict"),
        (b'{"snapshot_id":null}', "snapshot_id must be of type str"),
    ],
)
def test_what_is_no_state_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        RolloutState.of_bytes(data)


@pytest.mark.parametrize("rollout_id", ["0-0", "a.b_c-d", ".", "..", "-x", "A" * (255 - len(STATE_SUFFIX))])
def test_ids_that_can_name_files(rollout_id: str) -> None:
    assert check_store_rollout_id(rollout_id) == rollout_id


@pytest.mark.parametrize("rollout_id", ["", "a/b", "../x", "é", "a\n", "a b", "a\0", None, 3, "A" * 238])
def test_ids_that_cannot(rollout_id: object) -> None:
    with pytest.raises(RolloutIdError, match="cannot name token files"):
        check_store_rollout_id(rollout_id)
