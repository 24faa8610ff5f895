"""Segments of a server that cannot reach the object store itself: the process that can dies and loses answers."""

from __future__ import annotations

import asyncio
import pickle
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import CaptureError, StorageError, StorageExistsError, StorageMissingError
from gym_ray.model_call_capture.hosted.stores import HostedStores, RemoteStore
from gym_ray.model_call_capture.segments.backend import SegmentBackend
from gym_ray.model_call_capture.segments.layout import decode_segment, mark_name
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.testing.begun_calls import begun_call
from gym_ray.testing.waiting import until


class Channel:
    def __init__(self) -> None:
        self.location = CaptureLocation(f"memory://{secrets.token_hex(8)}/captures")
        self.stores = HostedStores(self.location)
        self.place = self.stores.place
        self.after: Callable[[str, Sequence[Any]], None] = lambda _method, _arguments: None
        self.calls: list[str] = []

    def call_store(self, own: bool, method: str, arguments: Sequence[Any]) -> Any:
        self.calls.append(method)
        try:
            answer = self.stores.call_store(own, method, pickle.loads(pickle.dumps(arguments)))
        except Exception as error:  # noqa: BLE001 - errors travel, too
            raise pickle.loads(pickle.dumps(error)) from None
        self.after(method, arguments)
        return answer

    def records(self) -> list[str]:
        store, found = RemoteStore(self, own=False), []
        for name in store.list("segments/"):
            index, _ = decode_segment(store.read(name), name=name)
            found += [record.call_id for record in index.records]
        return found


@pytest.fixture
def channel() -> Channel:
    return Channel()


def start(channel: Channel, local_dir: Path) -> CaptureWriter:
    stores = RemoteStore(channel, own=False), RemoteStore(channel, own=True)
    writer = CaptureWriter(SegmentBackend(*stores, local_dir=local_dir), server_name="policy")
    writer.start()
    return writer


def test_a_store_behind_a_channel_keeps_the_contract(channel: Channel) -> None:
    store, own = RemoteStore(channel, own=False), RemoteStore(channel, own=True)
    assert store.exclusive
    store.create("a/b", b"0123456789")
    own.publish("a/b", b"other")
    assert (store.read("a/b"), own.read("a/b")) == (b"0123456789", b"other")
    assert (store.size("a/b"), store.exists("a/b"), store.list("a/")) == (10, True, ["a/b"])
    assert (store.read_range("a/b", 2, 3), store.read_tail("a/b", 4)) == (b"234", (b"6789", 10))
    with pytest.raises(StorageExistsError):
        store.create("a/b", b"again")
    store.delete("a/b")
    store.sync_dir()
    assert not store.exists("a/b")
    with pytest.raises(StorageMissingError):
        store.read("a/b")
    with pytest.raises(StorageError, match="in parts"):
        store.stream("a/b")
    assert list(store.sweep_temporary(60)) == []
    assert own.place == f"{store.place}/.gym-ray"
    store.close()


@pytest.mark.parametrize("method", ["close", "__init__", "backend", "stream"])
def test_nothing_else_can_be_called(channel: Channel, method: str) -> None:
    with pytest.raises(StorageError, match="cannot be called from elsewhere"):
        channel.call_store(False, method, ())


async def test_many_records_are_one_call(channel: Channel, tmp_path: Path) -> None:
    writer = await asyncio.to_thread(start, channel, tmp_path)
    await asyncio.gather(*[writer.submit(begun_call(writer)) for _ in range(40)])
    assert channel.calls.count("create") <= 4
    await asyncio.to_thread(writer.close)
    assert len(channel.records()) == 40


async def test_a_lost_answer_is_no_second_record(channel: Channel, tmp_path: Path) -> None:
    writer = await asyncio.to_thread(start, channel, tmp_path)
    lost: list[str] = []

    def lose(method: str, arguments: Sequence[Any]) -> None:
        if method == "create" and not lost:
            lost.append(arguments[0])
            raise CaptureError("the writer's process ended")

    channel.after = lose
    exchange = begun_call(writer)
    await writer.commit(exchange)
    assert len(lost) == 1
    assert (writer.counts.recorded, writer.counts.failed) == (1, 0)
    assert channel.records() == [exchange.call_id]
    await asyncio.to_thread(writer.close)


async def test_a_channel_that_is_gone_marks_once_it_is_back(channel: Channel, tmp_path: Path) -> None:
    writer = await asyncio.to_thread(start, channel, tmp_path)

    def gone(method: str, arguments: Sequence[Any]) -> None:
        raise CaptureError(f"nobody answers {method} of {arguments[0]}")

    stores, channel.after = channel.stores, gone
    channel.stores = type("Nobody", (), {"call_store": lambda *_: None})()  # type: ignore[assignment]
    await writer.commit(begun_call(writer))
    answer = await writer.quiesce(["0-0"], 0)
    assert answer["rollouts"]["0-0"]["incomplete"]
    channel.stores, channel.after = stores, lambda _method, _arguments: None
    await until(lambda: RemoteStore(channel, own=False).exists(mark_name("0-0")))
    await asyncio.to_thread(writer.close)
