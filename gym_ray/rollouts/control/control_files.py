"""What a desk and its clients write: one small file for each request and each answer, and the word on where a run is.

Every file is published whole under its name. A request names the run and the desk it is for, so that a later collector
of the same output never does what somebody asked of an earlier one.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import StorageError
from gym_ray.rollouts.run_paths import RunPaths

__all__ = ["ACTIONS", "MOST_BYTES", "ControlPlaces", "DamagedRequest", "Request", "new_request", "publish_small"]

ACTIONS = ("pause", "resume", "drain", "cancel", "requeue")
MOST_BYTES = 1024**2
"""A request that is larger is refused unread."""
_ID = re.compile(r"[0-9a-f]{48}")


class DamagedRequest(ValueError):  # noqa: N818 - it never leaves the room; what does is an answer
    """A file that is no request."""


@dataclass(frozen=True, slots=True)
class ControlPlaces:
    """The names of a run's control files.

    Attributes:
        root: ``<stem>.run/control``, for its owner only.
        status: Where the run stands, replaced each second.
    """

    root: Path
    status: Path

    @classmethod
    def of(cls, paths: RunPaths) -> ControlPlaces:
        """Return the names of a run."""
        return cls(paths.directory / "control", paths.directory / "status.json")

    @property
    def requests(self) -> Path:
        """What waits for the desk."""
        return self.root / "requests"

    @property
    def taken(self) -> Path:
        """What the desk is about to do."""
        return self.root / "taken"

    @property
    def answers(self) -> Path:
        """What it said."""
        return self.root / "answers"

    @property
    def refused(self) -> Path:
        """Files that are no requests."""
        return self.root / "refused"

    def make(self) -> None:
        """Make the directories, for their owner only.

        Raises:
            StorageError: One cannot be made.
        """
        try:
            for place in (self.root, self.requests, self.taken, self.answers, self.refused):
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.root}: cannot be made: {error}") from error


@dataclass(frozen=True, slots=True)
class Request:
    """Something asked of a run.

    Attributes:
        id: The file's name too: 16 hexadecimal digits of the asking machine's clock, so that names sort as requests
            were made, and 32 at random.
        run_id: The run that is meant.
        desk: The desk that is meant, as its status names it.
        action: One of :data:`ACTIONS`.
        rollout_ids: Rollouts that are meant, None for all that can be.
    """

    id: str
    run_id: str
    desk: str
    action: str
    rollout_ids: tuple[str, ...] | None = None

    def encode(self) -> bytes:
        """Return the request's file."""
        return exact_json.dumps({"gym_ray_request": 1, **asdict(self)})

    @classmethod
    def decode(cls, name: str, data: bytes) -> Request:
        """Return the request that a file holds.

        Raises:
            DamagedRequest: It holds none; the message says what is wrong.
        """
        value = exact_json.loads_object(data)
        if value is None or value.get("gym_ray_request") != 1:
            raise DamagedRequest("not a request of version 1")
        fields = {key: value.get(key) for key in ("id", "run_id", "desk", "action")}
        for key, text in fields.items():
            if not isinstance(text, str):
                raise DamagedRequest(f"{key}: not a text")
        if fields["id"] != name or not _ID.fullmatch(name):
            raise DamagedRequest("id: not the name of its file")
        if fields["action"] not in ACTIONS:
            raise DamagedRequest(f"action: {fields['action']!r} is none of {', '.join(ACTIONS)}")
        ids = value.get("rollout_ids")
        if ids is not None and not (isinstance(ids, list) and all(isinstance(one, str) for one in ids)):
            raise DamagedRequest("rollout_ids: not a list of texts")
        return cls(**fields, rollout_ids=None if ids is None else tuple(ids))  # type: ignore[arg-type]


def new_request(status: dict[str, Any], action: str, rollout_ids: Sequence[str] | None) -> Request:
    """Return a request for the desk that wrote a status."""
    ids = None if rollout_ids is None else tuple(rollout_ids)
    return Request(f"{time.time_ns():016x}{secrets.token_hex(16)}", status["run_id"], status["desk"], action, ids)


def publish_small(path: Path, data: bytes) -> None:
    """Write a file for its owner, whole or not at all; it need not survive a power cut.

    Raises:
        StorageError: It cannot be written.
    """
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise StorageError(f"{path}: cannot be written: {error}") from error
