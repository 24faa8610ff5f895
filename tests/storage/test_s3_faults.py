"""What S3 does when the way to it is bad: nothing acknowledged is missing, nothing half is listed."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gym_ray.errors import StorageError, StorageExistsError
from gym_ray.storage.object_store import ObjectStore
from gym_ray.testing.faulty_http import Fault, FaultyHttp, faulty_http
from gym_ray.testing.killed_process import lines_until_killed
from gym_ray.testing.s3_server import S3Server, s3_server
from gym_ray.testing.store_conformance import put
from gym_ray.testing.waiting import until

FEW_RETRIES = {"max_attempts": 1}
"""Of botocore; s3fs has its own."""

LARGE = b"x" * (9 * 1024 * 1024)
"""Two parts."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[FaultyHttp]:
    with faulty_http((s3.host, s3.port)) as proxy:
        yield proxy


@pytest.fixture
def way(proxy: FaultyHttp) -> FaultyHttp:
    proxy.calm()
    return proxy


@contextmanager
def opened(s3: S3Server, way: FaultyHttp, **config: object) -> Iterator[ObjectStore]:
    with pytest.MonkeyPatch.context() as patch:
        # botocore waits up to a second before it repeats a request, and no setting shortens that
        patch.setattr("botocore.retryhandler.delay_exponential", lambda **_: 0.01)
        store = ObjectStore(s3.new_url(), s3.options(way.url, config_kwargs={"retries": FEW_RETRIES, **config}))
        assert store.exclusive
    yield store
    store.close()


@pytest.fixture(scope="module")
def shared(s3: S3Server, proxy: FaultyHttp) -> Iterator[ObjectStore]:
    """A client takes longer to make than most of these tests."""
    with opened(s3, proxy) as store:
        yield store


@pytest.fixture
def store(shared: ObjectStore, way: FaultyHttp) -> ObjectStore:
    for name in shared.list():
        shared.delete(name)
    shared.sweep_temporary(-60.0)  # a begin whose answer was lost leaves an upload
    way.calm()
    return shared


@pytest.fixture
def hasty_store(s3: S3Server, way: FaultyHttp) -> Iterator[ObjectStore]:
    with opened(s3, way, read_timeout=0.4) as store:
        yield store
        way.calm()


def is_put(method: str, path: str) -> bool:
    return method == "PUT" and "uploadId" not in path


def is_part(method: str, path: str) -> bool:
    return method == "PUT" and "partNumber" in path


def is_begin(method: str, path: str) -> bool:
    return method == "POST" and "?uploads" in path


def is_complete(method: str, path: str) -> bool:
    return method == "POST" and "uploadId" in path


def is_get(method: str, path: str) -> bool:
    return method == "GET"


def open_uploads(store: ObjectStore) -> list[str]:
    bucket, prefix = store.backend.split(f"{store.place.removeprefix('s3://')}/")
    answer = store.backend.file_system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
    return [upload["Key"] for upload in answer.get("Uploads", ())]


REPEATED = [Fault.LOST_ANSWER, Fault.STATUS_500, Fault.STATUS_503, Fault.CUT_REQUEST]


@pytest.mark.parametrize("fault", REPEATED)
def test_a_put_that_fails_once_succeeds(store: ObjectStore, way: FaultyHttp, fault: Fault) -> None:
    way.fail(fault, is_put)
    store.create("created", b"1")
    way.fail(fault, is_put)
    put(store, "streamed", b"2")
    way.fail(fault, is_put)
    store.publish("published", b"3")
    assert way.left() == 0
    assert [store.read(name) for name in store.list()] == [b"1", b"3", b"2"]


@pytest.mark.parametrize("fault", REPEATED)
def test_an_upload_that_fails_once_succeeds(store: ObjectStore, way: FaultyHttp, fault: Fault) -> None:
    for where in (is_begin, is_part, is_complete):
        way.fail(fault, where)
    put(store, "large", LARGE)
    assert way.left() == 0
    assert store.list() == ["large"]
    assert store.size("large") == len(LARGE)
    assert store.read_tail("large", 5) == (LARGE[-5:], len(LARGE))


def test_answers_that_never_come_are_asked_for_again(hasty_store: ObjectStore, way: FaultyHttp) -> None:
    way.fail(Fault.SILENCE, is_put)
    hasty_store.create("created", b"1")
    way.fail(Fault.SILENCE, is_part)
    way.fail(Fault.SILENCE, is_complete)
    put(hasty_store, "large", LARGE)
    way.fail(Fault.SILENCE, is_get)
    assert hasty_store.read_tail("created", 4) == (b"1", 1)
    assert way.left() == 0
    assert hasty_store.list() == ["created", "large"]
    assert hasty_store.size("large") == len(LARGE)


def test_an_own_object_behind_a_lost_answer_is_a_success_and_a_foreign_one_is_not(
    store: ObjectStore, way: FaultyHttp
) -> None:
    way.fail(Fault.LOST_ANSWER, is_put)
    store.create("marker", b"same")
    way.fail(Fault.LOST_ANSWER, is_put)
    with pytest.raises(StorageExistsError, match="marker"):
        store.create("marker", b"same")
    way.fail(Fault.LOST_ANSWER, is_put)
    with pytest.raises(StorageExistsError, match="marker"):
        put(store, "marker", b"other")
    assert store.read("marker") == b"same"


@pytest.mark.parametrize("fault", [Fault.STATUS_500, Fault.STATUS_503, Fault.CUT_REQUEST])
@pytest.mark.parametrize("data", [b"small", LARGE])
def test_what_never_arrives_is_an_error_and_leaves_nothing(
    store: ObjectStore, way: FaultyHttp, fault: Fault, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.backend.file_system, "retries", 1)
    way.fail(fault, lambda method, path: is_put(method, path) or is_part(method, path), times=100)
    with pytest.raises(StorageError, match=r"cannot (publish|write) s3://rollouts/.*/x:"):
        put(store, "x", data)
    assert way.left() < 100
    assert store.list() == []
    assert open_uploads(store) == []


def test_an_outage_is_an_error_that_says_so(
    store: ObjectStore, way: FaultyHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.backend.file_system, "retries", 1)
    way.fail(Fault.CUT_REQUEST, lambda method, path: True, times=1000)
    for refused in (
        lambda: put(store, "x", b"1"),
        lambda: store.exists("x"),
        lambda: store.list(),
        lambda: store.read_tail("x", 1),
    ):
        with pytest.raises(StorageError, match="s3://rollouts/") as caught:
            refused()
        assert type(caught.value) is StorageError


@pytest.mark.parametrize("fault", [*REPEATED, Fault.CUT_ANSWER, Fault.SLOW_ANSWER])
def test_reads_that_fail_once_succeed(store: ObjectStore, way: FaultyHttp, fault: Fault) -> None:
    put(store, "x", b"0123456789")
    way.fail(fault, is_get)
    assert store.read_tail("x", 4) == (b"6789", 10)
    way.fail(fault, is_get)
    assert store.read_range("x", 2, 5) == b"23456"
    way.fail(fault, is_get)
    assert store.read("x") == b"0123456789"
    if fault is not Fault.SLOW_ANSWER:  # a listing has too many bytes for that
        way.fail(fault, is_get)
    assert store.list() == ["x"]
    assert way.left() == 0


def test_how_many_requests_it_takes(store: ObjectStore, way: FaultyHttp) -> None:
    def requests(work: Callable[[], object]) -> list[str]:
        way.requests.clear()
        work()
        return [request.method for request in way.requests]

    assert requests(lambda: put(store, "small", b"1")) == ["PUT"]
    assert requests(lambda: store.create("created", b"1")) == ["PUT"]
    assert requests(lambda: put(store, "large", LARGE)) == ["POST", "PUT", "PUT", "POST"]
    assert max(request.size for request in way.requests) <= 16 * 1024 * 1024
    assert requests(lambda: store.read_tail("small", 9)) == ["GET"]
    assert requests(lambda: store.read_range("small", 0, 1)) == ["GET"]
    assert requests(lambda: store.read("small")) == ["GET"]
    assert requests(lambda: store.list()) == ["GET"]
    assert requests(lambda: store.exists("small")) == ["HEAD"]


def test_an_upload_is_given_up_once_its_parts_have_arrived(store: ObjectStore, way: FaultyHttp) -> None:
    with store.stream("x") as value:
        value.write(LARGE)
    assert [request.method for request in way.requests] == ["POST", "PUT", "DELETE"]  # a later part would stay


WRITER = """
import sys
import threading
from gym_ray.storage.object_store import ObjectStore
store = ObjectStore(sys.argv[1], dict(key="testing-key", secret="testing-secret", endpoint_url=sys.argv[2],
                                      client_kwargs={"region_name": "us-east-1"}))
for number in range(10_000):
    with store.stream(f"{number}") as value:
        for _ in range(1 + number % 2):
            value.write(b"%d" % (number % 10) * 5_000_000)
        value.publish()
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_what_it_acknowledged_and_nothing_half(s3: S3Server) -> None:
    url = s3.new_url()
    told = lines_until_killed([sys.executable, "-c", WRITER, url, s3.options()["endpoint_url"]], 3)
    store = ObjectStore(url, s3.options())
    try:
        names = store.list()
        assert {line.decode().strip() for line in told} <= set(names)
        for name in names:
            number = int(name)
            assert store.read(name) == b"%d" % (number % 10) * 5_000_000 * (1 + number % 2)
        store.sweep_temporary(-60.0)
        assert open_uploads(store) == []
    finally:
        store.close()


def test_a_writer_that_is_killed_in_an_upload_leaves_it_to_a_sweep(s3: S3Server, way: FaultyHttp) -> None:
    url = s3.new_url()
    way.fail(Fault.SILENCE, lambda method, path: is_part(method, path) and ".probe" not in path)
    code = WRITER.replace("range(10_000)", "(1,)")
    process = subprocess.Popen([sys.executable, "-c", code, url, way.url])
    try:
        assert way.held.wait(30)
    finally:
        process.kill()
        process.wait()
    store = ObjectStore(url, s3.options())
    try:
        assert store.list() == []
        assert f"{url.removeprefix('s3://')}/1" in store.sweep_temporary(-60.0)
        assert store.sweep_temporary(-60.0) == ()
    finally:
        store.close()


def test_an_upload_that_is_collected_on_the_thread_of_its_requests_is_aborted(store: ObjectStore) -> None:
    value = store.stream("x")
    value.write(LARGE)
    assert open_uploads(store) != []
    value.itself = value
    del value
    collected = threading.Event()
    store.backend.file_system.loop.call_soon_threadsafe(lambda: (gc.collect(), collected.set()))
    assert collected.wait(30)
    asyncio.run(until(lambda: open_uploads(store) == []))


def test_a_store_is_used_after_a_fork(store: ObjectStore) -> None:
    store.create("parent", b"1")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            store.create("child", store.read("parent") + b"2")
            os.write(writer, b"done")
        finally:
            os._exit(0)
    try:
        os.close(writer)
        assert os.read(reader, 10) == b"done"
        assert store.read("child") == b"12"
    finally:
        os.close(reader)
        os.waitpid(child, 0)


def test_credentials_are_not_shown(s3: S3Server) -> None:
    store = ObjectStore("s3://rollouts/x", {"key": "AKIASECRET", "secret": "verysecret", "endpoint_url": "verysecret"})
    assert "SECRET" not in repr(store).upper()
    with pytest.raises(StorageError, match="rollouts/x") as caught:
        store.list()
    seen: BaseException | None = caught.value
    while seen is not None:
        assert "verysecret" not in str(seen)
        seen = seen.__cause__
