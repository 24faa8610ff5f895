"""An object store examined by several nodes: one that is as it should be, and some that are not."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from gym_ray.errors import StorageError
from gym_ray.storage.opening import open_store
from gym_ray.storage.shared_place.examining import examine
from gym_ray.storage.shared_place.judging import judge
from gym_ray.storage.shared_place.report import Mode, PlaceReport, Severity
from gym_ray.storage.shared_place.store_hand import StoreHand
from gym_ray.storage.store import SegmentStore
from gym_ray.testing.lagging_store import LaggingStore
from gym_ray.testing.s3_server import s3_server
from gym_ray.testing.watched_store import WatchedStore
from gym_ray.testing.wrong_places import HandNode

Ask = Callable[..., PlaceReport]


@pytest.fixture
def url() -> str:
    return f"memory://{secrets.token_hex(6)}"


@pytest.fixture
def ask() -> Iterator[Ask]:
    nodes: list[HandNode] = []

    def examined(*stores: SegmentStore, patience_s: float = 0.2) -> PlaceReport:
        nodes.extend(HandNode(f"n{me}", StoreHand(store, "run", me)) for me, store in enumerate(stores))
        return judge(examine("place", nodes, is_store=True, watchers="test", patience_s=patience_s))

    yield examined
    for node in nodes:
        node.close()


class TwiceCreated(WatchedStore):
    """A store that takes a name that is there for a new one."""

    def create(self, name: str, data: bytes) -> None:
        super().publish(name, data)


class Unconditional(WatchedStore):
    """A store without conditional puts."""

    @property
    def exclusive(self) -> bool:
        return False


class Refusing(WatchedStore):
    """A store that takes nothing, as with rights to read only."""

    def publish(self, name: str, data: bytes) -> None:
        raise StorageError(f"cannot publish {name}: Access Denied")


def test_a_good_store_is_used_by_segments_and_is_left_empty(ask: Ask, url: str) -> None:
    report = ask(open_store(url), open_store(url), open_store(url))
    assert (report.mode, report.usable, report.findings, report.pairs) == (Mode.SEGMENTS, True, (), 3)
    assert set(report.worst_lag_s.values()) == {0.0}
    assert set(report.latencies_s) == {"put", "get", "get a range", "list", "delete"}
    assert open_store(url).list() == []


def test_a_store_over_the_wire_is_used_by_segments() -> None:
    with s3_server() as server:
        where = server.new_url()
        stores = [open_store(where, storage_options=server.options()) for _ in range(2)]
        nodes = [HandNode(f"n{me}", StoreHand(store, "run", me)) for me, store in enumerate(stores)]
        report = judge(examine(where, nodes, is_store=True, watchers="test"))
        for node in nodes:
            node.close()
        left = open_store(where, storage_options=server.options())
        assert left.list() == []
        left.close()
    assert (report.mode, report.usable, report.findings) == (Mode.SEGMENTS, True, ())


def test_stale_listings_are_found(ask: Ask, url: str) -> None:
    report = ask(open_store(url), LaggingStore(open_store(url), lag=2))
    (found,) = report.findings
    assert (found.code, found.nodes, report.usable) == ("late", ("n1",), False)
    assert "listing" in found.what
    assert open_store(url).list() == []


def test_another_store_is_found(ask: Ask, url: str) -> None:
    report = ask(open_store(url), open_store(f"{url}-other"))
    (found,) = report.findings
    assert (found.code, found.nodes, report.mode) == ("differs", ("n1",), Mode.UNUSABLE)


def test_a_store_that_gives_one_name_to_two_is_found(ask: Ask, url: str) -> None:
    report = ask(TwiceCreated(open_store(url)), TwiceCreated(open_store(url)))
    (found,) = report.findings
    assert (found.code, report.usable) == ("race", False)
    assert "2 believe to have got it (create, 8 of 8 names)" in found.what


@pytest.mark.parametrize(("kind", "said"), [(Unconditional, "no create-if-absent"), (Refusing, "Access Denied")])
def test_a_store_that_cannot_be_used_says_why(
    ask: Ask, url: str, kind: Callable[[SegmentStore], SegmentStore], said: str
) -> None:
    report = ask(open_store(url), kind(open_store(url)))
    errors = [found for found in report.findings if found.severity is Severity.ERROR]
    assert [(found.code, found.nodes) for found in errors] == [("store", ("n1",))]
    assert said in errors[0].what
    assert (report.mode, report.usable) == (Mode.UNUSABLE, False)
