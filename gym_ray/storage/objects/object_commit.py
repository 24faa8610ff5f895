"""How a put ends for certain, although its answer may be lost on the way."""

from __future__ import annotations

import errno
import hashlib
import secrets
from collections.abc import Callable

from gym_ray.storage.objects.object_backend import ObjectBackend

__all__ = ["create_works", "holds", "settle"]

_COMPARED = 8 * 1024 * 1024
_UNKNOWN_CONDITION = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
"""What a server becomes that does not know conditional requests: 501 or 400."""


def settle(send: Callable[[], None], is_ours: Callable[[], bool]) -> None:
    """Send a value; when that fails, look whether it is there all the same.

    Clients repeat a request whose answer was lost, and then meet their own object.

    Args:
        send: Puts the value under a name that should be free.
        is_ours: Whether what is under the name is this value; ``FileNotFoundError`` if nothing is.

    Raises:
        FileExistsError: Something else has the name.
        Exception: What ``send`` raised, and nothing is there; or nobody can say whether it is.
    """
    try:
        send()
    except Exception as error:
        try:
            ours = is_ours()
        except FileNotFoundError:
            raise error from None
        except Exception as second:  # noqa: BLE001 - boundary: whatever a client library raises
            raise OSError(f"{error}; whether it arrived all the same cannot be told: {second}") from error
        if not ours:
            raise FileExistsError("another value has the name") from error


def holds(backend: ObjectBackend, path: str, size: int, sha256: bytes) -> bool:
    """Return whether an object has exactly these bytes.

    Raises:
        FileNotFoundError: It is not there.
        Exception: It could not be read.
    """
    if backend.facts(path).size != size:
        return False
    digest = hashlib.sha256()
    for start in range(0, size, _COMPARED):
        digest.update(backend.read_range(path, start, min(start + _COMPARED, size)))
    return digest.digest() == sha256


def create_works(backend: ObjectBackend, directory: str) -> bool:
    """Find out whether a name can be taken exclusively, by one put and by an upload in parts; nothing is left.

    Args:
        backend: The store's client.
        directory: Path below which a hidden object may be for a moment.

    Raises:
        Exception: It could not be found out.
    """
    path = f"{directory}/.probe-{secrets.token_hex(8)}"
    mark = secrets.token_hex(16)
    backend.put(path, b"1", exclusive=False, mark=mark)
    try:
        return _refuses(lambda: backend.put(path, b"2", exclusive=True, mark=mark)) and _refuses(
            lambda: _upload(backend, path, mark)
        )
    finally:
        backend.delete(path)


def _upload(backend: ObjectBackend, path: str, mark: str) -> None:
    upload = backend.begin(path, mark)
    try:
        upload.part(b"3")
        upload.complete(exclusive=True)
    except BaseException:
        upload.abort()
        raise


def _refuses(attempt: Callable[[], None]) -> bool:
    try:
        attempt()
    except FileExistsError:
        return True
    except (NotImplementedError, TypeError):
        return False
    except OSError as error:
        if error.errno not in _UNKNOWN_CONDITION:
            raise
        return False
    return False
