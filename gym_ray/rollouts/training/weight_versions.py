"""The order of weight versions: forward, or back with a new epoch; and which rows are too old for today's weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pyarrow as pa

from gym_ray import exact_json
from gym_ray.errors import ClusterError, SettingsError, StorageError, StorageMissingError
from gym_ray.model_server.weight_version import WEIGHT_VERSION_PATH
from gym_ray.storage.posix import PosixStore

__all__ = ["EARLIER_EPOCH", "STALE", "UNKNOWN_VERSION", "Spoken", "VersionOrder", "say_version", "stale_reasons"]

STALE: Final = "stale_weights"
UNKNOWN_VERSION: Final = "unknown_weight_version"
EARLIER_EPOCH: Final = "earlier_epoch"
_FILE: Final = "weight-version.json"
_AT_ONCE: Final = 16
_TIMEOUT_S: Final = 30.0
_PATIENCE_S: Final = 30.0
"""How long a server may be away: one that lost its process is back on its port before that."""
_LOOK_S: Final = 0.2
_AWAY: Final = (httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class Spoken:
    """A version that was said, and in which epoch: a version that goes back begins a new one."""

    version: int
    epoch: int


class VersionOrder:
    """The last version that was said to the servers of a directory's collectors; durable, so that a restart knows it.

    Args:
        directory: Where the collector writes.

    Raises:
        StorageError: What an earlier collector said cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._store = PosixStore(directory)
        self.last = self._read()

    def _read(self) -> Spoken | None:
        try:
            found = exact_json.loads_object(self._store.read(_FILE))
        except StorageMissingError:
            return None
        if found is None or not all(isinstance(found.get(name), int) for name in ("version", "epoch")):
            raise StorageError(
                f"{self._store.root / _FILE}: not a version and its epoch; restore the file or remove it"
            )
        return Spoken(found["version"], found["epoch"])

    def advance(self, version: object, *, new_epoch: bool = False) -> Spoken:
        """Take the next version; durable when this returns. The same one may be said again.

        Raises:
            SettingsError: It is no whole number, or goes back without a new epoch.
            StorageError: It cannot be kept.
        """
        where, key = "set_weight_version", "version"
        if isinstance(version, bool) or not isinstance(version, int) or not -(2**63) < version < 2**63:
            raise SettingsError(where, key, f"{version!r} is not a whole number of 64 bits", "give the step's number")
        last = self.last
        if last is not None and version < last.version and not new_epoch:
            problem = f"{version} goes back behind {last.version}, which rows were sampled with already"
            raise SettingsError(where, key, problem, "pass new_epoch=True if the weights really did")
        epoch = 0 if last is None else last.epoch + int(new_epoch)
        spoken = Spoken(version, epoch)
        if spoken != last:
            self._store.publish(_FILE, exact_json.dumps({"version": version, "epoch": epoch}))
            self.last = spoken
        return spoken


def say_version(
    urls: Mapping[str, str], version: int, run_token: str | None, *, patience_s: float = _PATIENCE_S
) -> None:
    """Tell every model server which weights its engine serves; they all know it when this returns.

    One that does not answer is asked again for a while: it may be starting again.

    Args:
        urls: Root URL by what messages call the server.
        version: The version.
        run_token: What the servers ask for.
        patience_s: How long a server may be away.

    Raises:
        ClusterError: A server refused or did not answer; all are named. The others know it; say it again.
    """
    headers = {} if run_token is None else {"authorization": f"Bearer {run_token}"}
    request: dict[str, Any] = {"json": {"version": version}, "headers": headers}

    until = time.monotonic() + patience_s

    def say(item: tuple[str, str]) -> str:
        name, url = item
        try:
            answer = _answered(lambda: client.post(url.rstrip("/") + WEIGHT_VERSION_PATH, **request), until)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{name}: {type(error).__name__}: {error}"
        if answer.status_code == httpx.codes.NOT_FOUND:
            return f"{name}: it captures no tokens; set ++token_id_capture.enabled=true"
        return "" if answer.is_success else f"{name}: HTTP {answer.status_code}: {answer.text[:200]}"

    with httpx.Client(trust_env=False, timeout=_TIMEOUT_S) as client, ThreadPoolExecutor(_AT_ONCE) as threads:
        problems = [problem for problem in threads.map(say, urls.items()) if problem]
    if problems:
        raise ClusterError(f"weight version {version} was not taken by {'; '.join(problems)}")


def _answered(ask: Callable[[], httpx.Response], until: float) -> httpx.Response:
    """Ask until a server is there, or time is up; then its last answer, or what there was instead, stands."""
    while True:
        try:
            answer = ask()
        except httpx.TransportError:
            if time.monotonic() >= until:
                raise
        else:
            if answer.status_code not in _AWAY or time.monotonic() >= until:
                return answer
        time.sleep(_LOOK_S)


def stale_reasons(table: pa.Table, now: Spoken, max_staleness: int) -> Iterator[tuple[str, ...]]:
    """Yield for each row of a token table why it is too old, nothing when it is not.

    Args:
        table: The rows.
        now: The version that was said last, in the epoch of the rows: versions of two epochs cannot be compared.
        max_staleness: How many versions ago a row's oldest token may be sampled.
    """
    for oldest in table.column("oldest_weight_version").to_pylist():
        if oldest is None:
            yield (UNKNOWN_VERSION,)
        else:
            yield (STALE,) if now.version - oldest > max_staleness else ()
