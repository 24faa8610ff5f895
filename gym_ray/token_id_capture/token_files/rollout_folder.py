"""The small files of a token directory: lifecycle, begun calls and marks of a rollout, read and changed whole.

Nothing here takes a lock. Whoever changes something holds the rollout's lock; a read without it sees a file as it was
before or after a change.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from gym_ray.storage.calls import FileCalls
from gym_ray.storage.line_files import LineFiles
from gym_ray.storage.posix import OWNER_ONLY, replace_file, sync_directory
from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.token_files.mark_lines import encode_mark, parse_marks
from gym_ray.token_id_capture.token_files.rollout_state import (
    ENTRIES_SUFFIX,
    INCOMPLETE_SUFFIX,
    INTENTS_SUFFIX,
    STATE_SUFFIX,
    RolloutState,
)

__all__ = ["RolloutFolder"]

_log = logging.getLogger(__name__)
_SUFFIXES: Final = (ENTRIES_SUFFIX, STATE_SUFFIX, INTENTS_SUFFIX, INCOMPLETE_SUFFIX)


class RolloutFolder:
    """The files of one directory.

    Args:
        root: The directory.
        calls: How the operating system is called.
    """

    def __init__(self, root: Path, calls: FileCalls) -> None:
        self.root, self.calls = root, calls

    def path(self, rollout_id: str, suffix: str) -> str:
        """Return the path of one of a rollout's files."""
        return f"{self.root}/{rollout_id}{suffix}"

    def read(self, rollout_id: str, suffix: str) -> bytes | None:
        """Return a file's bytes, None when it does not exist.

        Raises:
            OSError: It cannot be read.
        """
        try:
            fd = self.calls.open(self.path(rollout_id, suffix), os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            blocks, offset = [], 0
            while block := self.calls.pread(fd, 1 << 20, offset):
                blocks.append(block)
                offset += len(block)
            return b"".join(blocks)
        finally:
            self.calls.close(fd)

    def size(self, rollout_id: str, suffix: str) -> int | None:
        """Return a file's size, None when it does not exist."""
        try:
            return self.calls.stat(self.path(rollout_id, suffix)).st_size
        except FileNotFoundError:
            return None

    def stored_state(self, rollout_id: str) -> RolloutState | None:
        """Return a rollout's lifecycle as it is stored; None when that is missing or unreadable, which is logged.

        An unreadable one is as good as a missing one (W17): the records are in another file, and so are the marks.

        Raises:
            OSError: The file cannot be read.
        """
        data = self.read(rollout_id, STATE_SUFFIX)
        if data is None:
            return None
        try:
            return RolloutState.of_bytes(data)
        except ValueError as error:
            path = self.path(rollout_id, STATE_SUFFIX)
            _log.warning("%s: the lifecycle cannot be read and begins anew: %s", path, error)
            return None

    def state(self, rollout_id: str) -> RolloutState:
        """Return a rollout's lifecycle, the defaults when none is stored.

        Raises:
            OSError: The file cannot be read.
        """
        return self.stored_state(rollout_id) or RolloutState()

    def publish(self, rollout_id: str, state: RolloutState, *, is_news: bool = True) -> None:
        """Store a rollout's lifecycle; durable when it returns, and never half of it.

        Args:
            rollout_id: The rollout.
            state: Its lifecycle.
            is_news: Whether it tells more than the one before it, or its absence; else a crash may leave that one.

        Raises:
            OSError: It could not be done.
        """
        path = Path(self.path(rollout_id, STATE_SUFFIX))
        replace_file(self.calls, path, state.to_bytes(), OWNER_ONLY, sync_name=is_news)

    def prove(self) -> None:
        """Make sure that files which others put in place are those that a crash leaves.

        Raises:
            OSError: It could not be done.
        """
        sync_directory(self.calls, str(self.root))

    def is_marked(self, rollout_id: str) -> bool:
        """Return whether there is any mark."""
        return self.size(rollout_id, INCOMPLETE_SUFFIX) is not None

    def marks(self, rollout_id: str) -> list[CaptureProblem]:
        """Return the marks of a rollout.

        Raises:
            OSError: The file cannot be read.
        """
        data = self.read(rollout_id, INCOMPLETE_SUFFIX)
        return [] if data is None else parse_marks(data)

    def add_mark(self, rollout_id: str, mark: CaptureProblem) -> None:
        """Add a mark; durable when it returns.

        Raises:
            OSError: It could not be done.
        """
        files = LineFiles(self.root, calls=self.calls, max_handles=1)
        try:
            files.append(rollout_id + INCOMPLETE_SUFFIX, encode_mark(mark))
        finally:
            files.close()

    def intents(self, rollout_id: str) -> list[str]:
        """Return the ids of begun calls, each once. A line without its end was never acknowledged, nor its call made.

        Raises:
            OSError: The file cannot be read.
        """
        data = self.read(rollout_id, INTENTS_SUFFIX) or b""
        whole = data[: data.rfind(b"\n") + 1]
        return list(dict.fromkeys(line.decode("utf-8", "backslashreplace") for line in whole.split(b"\n") if line))

    def remove_intent(self, rollout_id: str, model_call_id: str) -> None:
        """Take a begun call back; durable when it returns, also if it was taken back before. One never begun is fine.

        Raises:
            OSError: It could not be done.
        """
        data = self.read(rollout_id, INTENTS_SUFFIX)
        if data is None:
            return
        *lines, torn = data.split(b"\n")
        wanted, path = model_call_id.encode(), self.path(rollout_id, INTENTS_SUFFIX)
        if wanted not in lines:
            self._cut(path, len(data))
            self.prove()
        elif lines.index(wanted) == len(lines) - 1:
            self._cut(path, len(data) - len(torn) - len(wanted) - 1)
        else:
            kept = b"".join(line + b"\n" for line in lines if line != wanted)
            replace_file(self.calls, Path(path), kept, OWNER_ONLY)

    def _cut(self, path: str, size: int) -> None:
        fd = self.calls.open(path, os.O_RDWR)
        try:
            self.calls.truncate(fd, size)
            self.calls.sync_data(fd)
        finally:
            self.calls.close(fd)

    def remove(self, rollout_id: str, *suffixes: str) -> None:
        """Remove files of a rollout, in this order; durable when it returns. Missing ones are fine.

        Raises:
            OSError: It could not be done.
        """
        removed = False
        for suffix in suffixes:
            try:
                self.calls.unlink(self.path(rollout_id, suffix))
                removed = True
            except FileNotFoundError:
                continue
        if removed:
            sync_directory(self.calls, str(self.root))

    def holds_anything(self, rollout_id: str) -> bool:
        """Return whether a rollout has any file but its lock."""
        return any(self.size(rollout_id, suffix) is not None for suffix in _SUFFIXES)

    def rollout_ids(self) -> list[str]:
        """Return the rollouts that have any file but a lock, sorted."""
        found = {path.name.removesuffix(suffix) for suffix in _SUFFIXES for path in self.root.glob(f"*{suffix}")}
        return sorted(found)
