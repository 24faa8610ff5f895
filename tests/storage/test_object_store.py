from __future__ import annotations

import errno
import pickle
import secrets
import traceback
from collections.abc import Callable

import pytest

from gym_ray.errors import StorageError, StorageExistsError, StorageMissingError
from gym_ray.storage import object_store
from gym_ray.storage.object_store import ObjectStore
from gym_ray.storage.objects.memory_backend import MemoryBackend
from gym_ray.storage.objects.object_backend import ObjectFacts, ObjectUpload
from gym_ray.storage.objects.object_opening import open_backend
from gym_ray.testing.store_conformance import put

LARGE = b"x" * (9 * 1024 * 1024)


class Backend(MemoryBackend):
    """A table whose ways can be made bad."""

    def __init__(self, file_system: object) -> None:
        super().__init__(file_system)
        self.marks: dict[str, str] = {}
        self.before: Callable[[str, bool], None] = lambda path, exclusive: None
        self.after: Callable[[str], None] = lambda path: None
        self.looked: Callable[[], None] = lambda: None

    def put(self, path: str, data: bytes, *, exclusive: bool, mark: str) -> None:
        self.before(path, exclusive)
        super().put(path, data, exclusive=exclusive, mark=mark)
        self.marks[path] = mark
        self.after(path)

    def facts(self, path: str) -> ObjectFacts:
        self.looked()
        return ObjectFacts(super().facts(path).size, self.marks.get(path, ""))


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    memory, root = open_backend(f"memory://{secrets.token_hex(8)}", {})
    backend = Backend(memory._file_system)
    monkeypatch.setattr(object_store, "open_backend", lambda url, options: (backend, root))
    return backend


@pytest.fixture
def store(backend: Backend) -> ObjectStore:
    return ObjectStore("memory://bucket/prefix", {"secret_key": "open sesame", "nested": {"token": "hush hush"}})


def ignores_conditions(backend: Backend) -> None:
    def replace(path: str, exclusive: bool) -> None:
        backend.delete(path)

    backend.before = replace


def fails(error: Exception, *, only: Callable[[bool], bool] = lambda exclusive: True) -> Callable[[str, bool], None]:
    def fail(path: str, exclusive: bool) -> None:
        if only(exclusive):
            raise error

    return fail


@pytest.mark.parametrize("how", ["ignored", "unknown"])
def test_a_store_without_conditional_puts_stages_but_creates_nothing(
    store: ObjectStore, backend: Backend, how: str
) -> None:
    if how == "ignored":
        ignores_conditions(backend)
    else:
        backend.before = fails(OSError(errno.ENOSYS, "NotImplemented"), only=bool)
    assert store.exclusive is False
    with pytest.raises(StorageError, match="no create-if-absent"):
        store.create("x", b"1")
    put(store, "small", b"1")
    put(store, "large", LARGE)
    put(store, "large", LARGE)
    for name in ("small", "large"):
        with pytest.raises(StorageExistsError, match=name):
            put(store, name, b"2")
    assert store.list() == ["large", "small"]
    assert store.read("small") == b"1"


def test_the_probe_leaves_nothing_not_even_hidden(store: ObjectStore, backend: Backend) -> None:
    assert store.exclusive
    assert [path for path in backend.find("") if ".probe" in path] == []


def test_a_longer_value_that_begins_alike_is_foreign(store: ObjectStore) -> None:
    put(store, "x", b"same and more")
    with pytest.raises(StorageExistsError, match="x"):
        put(store, "x", b"same")
    put(store, "x", b"same and more")


def test_what_cannot_be_found_out_is_no_answer(store: ObjectStore, backend: Backend) -> None:
    backend.before = fails(OSError(errno.EIO, "unreachable"))
    with pytest.raises(StorageError, match=r"cannot probe memory://bucket/prefix: .*unreachable"):
        _ = store.exclusive
    backend.before = lambda path, exclusive: None
    assert store.exclusive is True
    assert store.list() == []


@pytest.mark.parametrize("data", [b"small", LARGE])
def test_a_value_that_arrived_is_a_success_whatever_the_answer(
    store: ObjectStore, backend: Backend, data: bytes
) -> None:
    assert store.exclusive
    for error in (FileExistsError("taken"), TimeoutError("late"), FileNotFoundError("no such upload")):

        def lose(path: str, error: Exception = error) -> None:
            raise error

        backend.after = lose
        put(store, f"streamed-{type(error).__name__}", data)
        store.create(f"created-{type(error).__name__}", data)
    assert len(store.list()) == 6


def test_a_value_that_did_not_arrive_is_an_error(store: ObjectStore, backend: Backend) -> None:
    assert store.exclusive
    backend.before = fails(TimeoutError("late"))
    with pytest.raises(StorageError, match="cannot create memory://bucket/prefix/x: late"):
        store.create("x", b"1")
    with pytest.raises(StorageError, match="cannot publish memory://bucket/prefix/x: late"):
        put(store, "x", b"1")
    assert store.list() == []


def test_a_foreign_value_is_told_from_an_own_one_by_its_mark_or_bytes(store: ObjectStore, backend: Backend) -> None:
    assert store.exclusive
    store.create("x", b"1")
    with pytest.raises(StorageExistsError):
        store.create("x", b"1")
    put(store, "x", b"1")
    with pytest.raises(StorageExistsError):
        put(store, "x", b"2")
    backend.before = fails(TimeoutError("late"))
    with pytest.raises(StorageExistsError):
        put(store, "x", b"2")


def test_what_nobody_can_tell_is_said_so(store: ObjectStore, backend: Backend) -> None:
    assert store.exclusive
    backend.before = fails(TimeoutError("late"))

    def unreachable() -> None:
        raise ConnectionError("gone")

    backend.looked = unreachable
    with pytest.raises(StorageError, match="late; whether it arrived all the same cannot be told: gone") as caught:
        put(store, "x", b"1")
    assert type(caught.value) is StorageError


class Counted:
    def __init__(self, upload: ObjectUpload, aborted: list[str]) -> None:
        self.part, self.complete = upload.part, upload.complete
        self.abort = lambda: aborted.append("aborted")


def test_an_upload_is_given_up_once_unless_it_was_completed(
    store: ObjectStore, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.exclusive
    aborted: list[str] = []
    monkeypatch.setattr(backend, "begin", lambda path, mark: Counted(MemoryBackend.begin(backend, path, mark), aborted))
    put(store, "x", LARGE)
    assert aborted == []
    with store.stream("y") as value:
        value.write(LARGE)
    value.close()
    assert aborted == ["aborted"]
    put(store, "x", LARGE)
    assert aborted == ["aborted", "aborted"]


def test_secrets_in_an_error_are_not_shown(store: ObjectStore, backend: Backend) -> None:
    backend.looked = fails_with("refused: open sesame, hush hush")
    with pytest.raises(StorageError, match=r"refused: \*\*\*, \*\*\*$") as caught:
        store.size("x")
    assert caught.value.__cause__ is None
    backend.looked = fails_with("refused")
    with pytest.raises(StorageError, match=r"refused$") as caught:
        store.size("x")
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("is_told", [True, False])
def test_secrets_in_what_led_to_an_error_are_not_shown(store: ObjectStore, backend: Backend, is_told: bool) -> None:
    def fail() -> None:
        try:
            fails_with("open sesame")()
        except OSError as error:
            if is_told:
                raise OSError("refused") from error
            raise OSError("refused")  # noqa: B904 - as client libraries do

    backend.looked = fail
    with pytest.raises(StorageError, match=r"refused$") as caught:
        store.size("x")
    assert "open sesame" not in "".join(traceback.format_exception(caught.value))


def fails_with(text: str) -> Callable[[], None]:
    def fail() -> None:
        raise OSError(text)

    return fail


def test_only_a_read_misses_a_name(store: ObjectStore, backend: Backend) -> None:
    with pytest.raises(StorageMissingError):
        store.read("x")
    backend.before = fails(FileNotFoundError("no such bucket"))
    with pytest.raises(StorageError, match="no such bucket") as caught:
        store.publish("x", b"1")
    assert type(caught.value) is StorageError


def test_a_copy_has_the_options_and_no_connections(store: ObjectStore) -> None:
    copy = pickle.loads(pickle.dumps(store))
    assert copy.__getstate__() == store.__getstate__()
    assert copy._opened is None
