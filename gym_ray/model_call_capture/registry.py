"""Where living writers can be asked: ``<root>/.gym-ray/writers/<id>.json``, readable by their owner only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import CaptureError, StorageError, StorageMissingError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import OWNER_ONLY, OWNER_ONLY_DIRECTORY, PosixStore, make_directory

__all__ = [
    "OWN_DIRECTORY",
    "RegisteredWriter",
    "WriterRegistry",
    "dead_name",
    "encode_writer",
    "own_place",
    "parse_writer",
    "writer_name",
    "writers_directory",
]

OWN_DIRECTORY = ".gym-ray"
"""What a capture directory holds for its servers and collectors, beside captures and logs."""


def writers_directory(root: Path) -> Path:
    """Return where the living writers of a capture directory are registered."""
    return root / OWN_DIRECTORY / "writers"


@dataclass(frozen=True, slots=True)
class RegisteredWriter:
    """One writer.

    Attributes:
        writer_id: Server name and epoch.
        server_name: Name of the model server, None for a writer without one.
        open_log: File name of its open log; whoever can lock that knows that the writer is dead. None where locks tell
            nothing: only its own answer says that it lives.
        url: Root URL of its server, None when it cannot be asked over HTTP.
        run_token: What its routes want as bearer token, None when they want none.
        host: Machine it runs on; ``pid``, its process there.
        started_at: When it started, unix seconds; 0 for one that does not say.
    """

    writer_id: str
    server_name: str | None
    open_log: str | None
    url: str | None
    run_token: str | None
    host: str
    pid: int
    started_at: float = 0.0


class WriterRegistry:
    """The registered writers of one capture directory.

    Args:
        root: The capture directory.
        calls: How the operating system is called.
    """

    def __init__(self, root: Path, *, calls: FileCalls | None = None) -> None:
        self._calls, self._directory = calls or FileCalls(), root / OWN_DIRECTORY
        self._store = PosixStore(writers_directory(root), calls=calls, mode=OWNER_ONLY)

    def add(self, writer: RegisteredWriter) -> None:
        """Register a writer.

        Raises:
            StorageError: It could not be done.
        """
        try:
            make_directory(self._calls, self._directory, OWNER_ONLY_DIRECTORY)
        except OSError as error:
            raise StorageError(f"cannot create {self._directory}: {error}") from error
        self._store.publish(f"{writer.writer_id}.json", encode_writer(writer))

    def remove(self, writer_id: str) -> None:
        """Take a writer out; a missing one is fine.

        Raises:
            StorageError: It could not be done.
        """
        try:
            self._store.delete(f"{writer_id}.json")
        except StorageMissingError:
            return

    def remove_by_log(self, open_log: str) -> None:
        """Take out the writer that an open log belonged to.

        Raises:
            StorageError: It could not be done.
        """
        self.remove(Path(open_log).stem)

    def all(self) -> tuple[list[RegisteredWriter], list[str]]:
        """Return the registered writers, and the ids of entries that cannot be read.

        Raises:
            StorageError: The directory cannot be listed.
        """
        writers, unreadable = [], []
        for name in self._store.list():
            try:
                writers.append(parse_writer(self._store.read(name)))
            except StorageMissingError:
                continue  # it was taken out since we listed it
            except (StorageError, CaptureError):
                unreadable.append(Path(name).stem)
        return writers, unreadable


def own_place(where: str) -> str:
    """Return the place of what servers and collectors keep beside the captures, given that of the captures.

    It is a store of its own: the names in a store never begin with a dot, and its listings show none that do.
    """
    return f"{where.rstrip('/')}/{OWN_DIRECTORY}"


def writer_name(writer_id: str) -> str:
    """Return the name of a registered writer, in the store of :func:`own_place`."""
    return f"writers/{writer_id}.json"


def dead_name(writer_id: str) -> str:
    """Return the name of what declares a writer dead, in the store of :func:`own_place`."""
    return f"dead/{writer_id}.json"


def encode_writer(writer: RegisteredWriter) -> bytes:
    """Return a registration as it is stored."""
    return exact_json.dumps(asdict(writer)) + b"\n"


def parse_writer(data: bytes) -> RegisteredWriter:
    """Return the writer that a stored registration tells of.

    Raises:
        CaptureError: Something is missing in it.
    """
    entry: dict[str, Any] = {"started_at": 0.0, **(exact_json.loads_object(data) or {})}
    try:
        return RegisteredWriter(**{name: entry[name] for name in RegisteredWriter.__slots__})
    except KeyError as error:
        raise CaptureError(f"a registered writer lacks {error}") from error
