"""Claims on rollout ids in an object store: renewed by the living, taken over from the dead."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import StorageError
from gym_ray.model_call_capture.registry import own_place
from gym_ray.rollouts.capture_owner import CaptureOwner
from gym_ray.rollouts.store_claim import WATCHED_S, StoreClaim
from gym_ray.storage.opening import open_store

FIRST, SECOND = Path("/out/first.jsonl"), Path("/out/second.jsonl")


@pytest.fixture
def location() -> CaptureLocation:
    return CaptureLocation(f"memory://claims-{secrets.token_hex(6)}")


class Waits:
    """Lets no time pass, counts what would have, and does something meanwhile."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.waited, self._meanwhile = 0.0, meanwhile

    def __call__(self, seconds: float) -> None:
        self.waited += seconds
        self._meanwhile()


def names(location: CaptureLocation) -> list[str]:
    return open_store(own_place(location.where)).list("owners/")


def test_a_living_run_keeps_its_ids(location: CaptureLocation) -> None:
    first = StoreClaim(location, ["0-0", "1-0"], FIRST)
    waits = Waits(lambda: first.renew(FIRST))
    with pytest.raises(StorageError, match=r"rollout id 1-0 .* /out/first\.jsonl.*model_call_capture_dir"):
        StoreClaim(location, ["2-0", "1-0"], SECOND, wait=waits)
    assert len(names(location)) == 2  # what the second left behind is gone
    StoreClaim(location, ["2-0", "10-0"], SECOND, wait=waits).close()
    assert waits.waited < WATCHED_S
    first.close()
    first.close()
    assert names(location) == []
    StoreClaim(location, ["0-0"], SECOND, wait=waits).close()


def test_the_ids_of_a_dead_run_are_taken_over(location: CaptureLocation) -> None:
    store = open_store(own_place(location.where))
    store.create("owners/dead.ids", b"0-0\n")
    store.publish("owners/dead.beat", b'{"output":"/out/first.jsonl","beat":9}\n')
    store.create("owners/unborn.ids", b"0-0\n")  # it died before its first sign of life
    waits = Waits()
    claim = StoreClaim(location, ["0-0"], SECOND, wait=waits)
    assert waits.waited == WATCHED_S
    assert not {"owners/dead.ids", "owners/dead.beat", "owners/unborn.ids"} & set(names(location))
    claim.close()


def test_ids_that_are_given_back_while_we_look_are_free(location: CaptureLocation) -> None:
    first = StoreClaim(location, ["0-0"], FIRST)
    waits = Waits(first.close)
    StoreClaim(location, ["0-0"], SECOND, wait=waits).close()
    assert waits.waited < WATCHED_S


def test_a_run_claims_all_attempts_of_its_rollouts(location: CaptureLocation) -> None:
    owner = CaptureOwner(location, ["0-0-a3", "1-0"], FIRST)
    (ids,) = (name for name in names(location) if name.endswith(".ids"))
    assert open_store(own_place(location.where)).read(ids) == b"0-0\n1-0\n"
    owner.close()
    assert names(location) == []
