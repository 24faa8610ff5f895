"""The staging sink on S3: nothing acknowledged is missing, nothing that failed is there, whatever the way is like."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gym_ray.storage.object_store import ObjectStore
from gym_ray.testing.faulty_http import Fault, FaultyHttp, faulty_http
from gym_ray.testing.numbered_calls import media_of_call, numbered_call
from gym_ray.testing.s3_server import S3Server, s3_server
from gym_ray.token_id_capture.staging.parquet.calls.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.parquet.calls.staging_source import ParquetStagingSource

LARGE = 12 * 1024 * 1024
"""Bytes of media that go up in several parts."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def way(s3: S3Server) -> Iterator[FaultyHttp]:
    with faulty_http((s3.host, s3.port)) as proxy:
        yield proxy


@pytest.fixture
def store(s3: S3Server, way: FaultyHttp) -> Iterator[ObjectStore]:
    store = ObjectStore(s3.new_url(), s3.options(way.url, config_kwargs={"retries": {"max_attempts": 1}}))
    yield store
    store.close()


def is_segment_write(method: str, path: str) -> bool:
    return method in ("PUT", "POST") and ".calls.parquet" in path


def check(store: ObjectStore, keys: dict[int, str], media_bytes: int) -> None:
    with ParquetStagingSource(store.place, store=store) as source:
        found = source.fetch(list(keys.values()))
        assert [call.digest for call in found] == [numbered_call(number).digest for number in keys]
        for number, key in keys.items():
            for name, wanted in media_of_call(number, media_bytes).items():
                view = source.fetch_attachments(key)[name]
                assert not isinstance(view, list)
                assert np.array_equal(view.read(), wanted)


@pytest.mark.parametrize("media_bytes", [4096, LARGE])
@pytest.mark.parametrize("fault", [None, Fault.LOST_ANSWER, Fault.STATUS_500, Fault.STATUS_503])
def test_a_call_is_staged_although_a_request_goes_wrong(
    store: ObjectStore, way: FaultyHttp, fault: Fault | None, media_bytes: int
) -> None:
    with ParquetStagingSink(store.place, store=store) as sink:
        if fault is not None:
            way.fail(fault, is_segment_write)
        result = sink.stage(numbered_call(1), attachments=media_of_call(1, media_bytes))
        assert result.ok, result.error
        assert result.staging_key
    assert way.left() == 0
    check(store, {1: result.staging_key}, media_bytes)


def test_a_call_that_could_not_be_sent_is_not_there(store: ObjectStore, way: FaultyHttp) -> None:
    with ParquetStagingSink(store.place, store=store) as sink:
        way.fail(Fault.STATUS_500, is_segment_write, times=1000)
        result = sink.stage(numbered_call(1), attachments=media_of_call(1))
        assert not result.ok
        assert ".calls.parquet" in (result.error or "")
        assert store.list() == ["store.json"]
        while way.next_fault("PUT", ".calls.parquet"):
            pass
        result = sink.stage(numbered_call(1), attachments=media_of_call(1))
        assert result.ok, result.error
        assert result.staging_key
    check(store, {1: result.staging_key}, 4096)


def test_many_threads_share_few_requests(store: ObjectStore, way: FaultyHttp) -> None:
    with ParquetStagingSink(store.place, store=store) as sink:
        with ThreadPoolExecutor(64) as pool:
            results = list(pool.map(lambda number: sink.stage(numbered_call(number)), range(256)))
        assert all(result.ok for result in results)
        assert sink.stats().commits.mean_batch >= 16
    writes = [request for request in way.requests if is_segment_write(request.method, request.path)]
    assert len(writes) == sink.stats().commits.segments
    with ParquetStagingSource(store.place, store=store) as source:
        assert len(source.fetch([str(result.staging_key) for result in results])) == 256
