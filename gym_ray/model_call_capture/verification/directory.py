"""Verifies a capture directory: every file, marker and line; what is wrong, where, and what to do about it.

It reads only, and holds no lock while it parses, so it may run beside a run. What it cannot know is whether a call was
lost without any trace; that is what markers, open logs and the servers' own lists are for.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gym_ray.correlation import check_rollout_id
from gym_ray.errors import CaptureError, RolloutIdError, StorageError
from gym_ray.model_call_capture.findings import CaptureVerification, Findings
from gym_ray.model_call_capture.open_log import OPEN_LOGS, is_living, list_logs, log_path, take_dead
from gym_ray.model_call_capture.registry import OWN_DIRECTORY, WriterRegistry, writers_directory
from gym_ray.model_call_capture.store import CAPTURE_SUFFIX, INCOMPLETE_SUFFIX
from gym_ray.model_call_capture.verification.repeated_ids import RepeatedIds
from gym_ray.model_call_capture.verification.verified_file import call_ids_of, verify_file

__all__ = ["verify_captures"]

_OURS = (OPEN_LOGS, OWN_DIRECTORY)
_TOKENS = ".tokens."
_OTHERS = 0o077
_REPEATED_SHOWN = 1000


def verify_captures(directory: Path) -> CaptureVerification:
    """Look at everything in a capture directory. Memory: 12 bytes a call, and the longest line.

    Raises:
        CaptureError: It is no directory, or cannot be listed.
    """
    return _Verifier(directory).result()


class _Verifier:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._findings = Findings()
        self._ids = RepeatedIds()
        self._captures: list[str] = []
        self._markers: set[str] = set()
        self._files = self._empty = self._lines = self._calls = self._size = 0
        self._lost: dict[str, dict[str, Path]] = {}
        """Rollout: calls that a dead server began and did not end, and the log that says so."""

    def result(self) -> CaptureVerification:
        self._list()
        self._read_open_logs()
        for rollout_id in self._captures:
            self._verify_capture(rollout_id)
            self._findings.forget_kinds()
        self._add_markers()
        self._add_lost()
        self._add_repeated()
        self._add_writers()
        return CaptureVerification(
            self._root,
            self._files,
            self._empty,
            self._lines,
            self._calls,
            self._size,
            len(self._markers),
            self._findings.count("error"),
            self._findings.count("warning"),
            self._findings.kept(),
        )

    def _list(self) -> None:
        try:
            if not self._root.is_dir():
                raise CaptureError(f"{self._root}: not a directory; name the model_call_capture_dir of a run")
            self._check_mode(self._root, self._root.stat())
            with os.scandir(self._root) as entries:
                names = sorted(entry.name for entry in entries)
        except OSError as error:
            raise CaptureError(f"{self._root}: cannot be listed: {error}") from error
        for name in names:
            self._sort_in(name)

    def _sort_in(self, name: str) -> None:
        path = self._root / name
        for suffix in (CAPTURE_SUFFIX, INCOMPLETE_SUFFIX):
            if name.endswith(suffix):
                rollout_id = name.removesuffix(suffix)
                if self._is_usable(path, rollout_id):
                    if suffix == CAPTURE_SUFFIX:
                        self._captures.append(rollout_id)
                    else:
                        self._markers.add(rollout_id)
                return
        if name not in _OURS and _TOKENS not in name:
            remedy = "nobody reads it here; move it away if it is not yours to keep"
            self._findings.add("warning", "foreign_file", path, "no file of a capture", remedy)

    def _is_usable(self, path: Path, rollout_id: str) -> bool:
        try:
            check_rollout_id(rollout_id)
        except RolloutIdError as error:
            remedy = "no rollout can have this capture; rename it, or move it away"
            self._findings.add("error", "no_rollout_id", path, str(error), remedy)
            return False
        try:
            info = path.lstat()
        except FileNotFoundError:
            return False  # taken away since it was listed: a run that clears removes markers
        if not stat.S_ISREG(info.st_mode):
            remedy = "captures are regular files; put the file itself here"
            self._findings.add("error", "no_regular_file", path, "a link, a directory or a device", remedy)
            return False
        self._check_mode(path, info)
        return True

    def _check_mode(self, path: Path, info: os.stat_result) -> None:
        mode = stat.S_IMODE(info.st_mode)
        if mode & _OTHERS:
            what = f"others than its owner may use it (mode {mode:04o}); prompts and answers are in here"
            self._findings.add("warning", "open_to_others", path, what, f"chmod go-rwx '{path}'")

    def _read_open_logs(self) -> None:
        remedy = "nobody knows which calls its server lost; make the file readable, and verify again"
        try:
            logs = list_logs(self._root)
        except OSError as error:
            self._findings.add("error", "unreadable_log", self._root / OPEN_LOGS, str(error), remedy)
            return
        for path in logs:
            try:
                with take_dead(path) as dead:
                    for call_id, rollout_id in (dead.open_calls if dead is not None else {}).items():
                        self._lost.setdefault(rollout_id, {})[call_id] = path
            except OSError as error:
                self._findings.add("error", "unreadable_log", path, str(error), remedy)

    def _verify_capture(self, rollout_id: str) -> None:
        path, lost = self._root / f"{rollout_id}{CAPTURE_SUFFIX}", self._lost.get(rollout_id, {})
        self._ids.begin(path)

        def note(call_id: str) -> None:
            self._ids.add(call_id)
            lost.pop(call_id, None)

        try:
            facts = verify_file(path, self._findings, note)
        except FileNotFoundError:
            return
        except OSError as error:
            remedy = "the rollout's record says that its capture is unreadable; make it readable and join it again"
            self._findings.add("error", "unreadable_file", path, str(error), remedy)
            return
        self._files += 1
        self._empty += facts.lines == 0
        self._lines += facts.lines
        self._calls += facts.calls
        self._size += facts.size

    def _add_markers(self) -> None:
        captured = set(self._captures)
        for rollout_id in sorted(self._markers):
            path = self._root / f"{rollout_id}{INCOMPLETE_SUFFIX}"
            code, what = "marked_incomplete", "at least one call of this rollout was lost; its record says so"
            if rollout_id not in captured:
                code, what = "marker_without_file", "a call of this rollout was lost, and there is no capture file"
            remedy = "look for the server's warning of that time; run the rollout again if the call matters"
            self._findings.add("warning", code, path, what, remedy)

    def _add_lost(self) -> None:
        for rollout_id, calls in sorted(self._lost.items()):
            for call_id, log in sorted(calls.items()):
                what = f"call {call_id} of rollout {rollout_id} began on this server, which died before it was recorded"
                marked = rollout_id in self._markers
                remedy = (
                    "the rollout is marked; start the server again, and the log goes away"
                    if marked
                    else "nothing else says so yet: start the server again, or join the rollout again "
                    "(`gym-ray eval rejoin`), and it is marked"
                )
                self._findings.add("warning" if marked else "error", "lost_call", log, what, remedy)

    def _add_repeated(self) -> None:
        suspects, files = self._ids.suspects()
        if not suspects:
            return
        first: dict[str, tuple[Path, int]] = {}
        for path, number, call_id in self._ids_in(files):
            if not self._ids.is_suspect(call_id, suspects):
                continue
            if call_id not in first:
                if len(first) < _REPEATED_SHOWN:
                    first[call_id] = (path, number)
                continue
            before, line = first[call_id]
            self._findings.add(
                "error",
                "repeated_call_id",
                path,
                f"call {call_id} is in {'this file' if before == path else before}, too, line {line}",
                "no reference to it is exact, and within one file there is no trajectory; "
                "find out who copied the line or file, or which producer repeats ids",
                line=number,
            )

    def _ids_in(self, files: list[Path]) -> Iterator[tuple[Path, int, str]]:
        for path in files:
            try:
                for number, call_id in call_ids_of(path):
                    yield path, number, call_id
            except OSError:
                continue  # gone, or not readable any more: what the first look found stands

    def _add_writers(self) -> None:
        registry = writers_directory(self._root)
        try:
            writers, unreadable = WriterRegistry(self._root).all()
        except (OSError, StorageError) as error:
            remedy = "joins cannot ask the servers either; make the directory readable"
            self._findings.add("error", "unreadable_registry", registry, str(error), remedy)
            return
        for writer in writers:
            file = registry / f"{writer.writer_id}.json"
            try:
                is_dead = writer.open_log is not None and not is_living(log_path(self._root, writer.open_log))
            except (TypeError, ValueError, OSError) as error:  # its log is no name, or no file that can be locked
                self._add_damaged_registration(file, f"it names no log of a server: {error}")
                continue
            if is_dead:
                what = f"server {writer.server_name} on {writer.host} (pid {writer.pid}) is registered and dead"
                remedy = "start the server again, and the entry goes away; joins do not wait for it"
                self._findings.add("warning", "dead_writer", file, what, remedy)
        for writer_id in unreadable:
            self._add_damaged_registration(registry / f"{writer_id}.json", "no registration of a server")

    def _add_damaged_registration(self, file: Path, what: str) -> None:
        remedy = "joins report its calls as unknown; remove it when that server is gone"
        self._findings.add("error", "damaged_registration", file, what, remedy)
