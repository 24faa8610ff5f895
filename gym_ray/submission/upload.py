"""What a working directory would upload for a job, looked at before anything leaves this machine.

Ray packs a directory by rules that surprise: a large ``.git`` or ``.venv`` stops the upload, data that ``.gitignore``
names is missing on the cluster, a key file travels along. So the list is made here, shown, and copied as it was shown.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pathspec

from gym_ray.errors import SettingsError, StorageError

__all__ = ["Upload", "check_inputs", "check_upload", "copy_upload", "missing_inputs", "ray_surprises", "survey"]

ALWAYS_LEFT_OUT = (
    ".git",
    ".hg",
    ".svn",
    ".venv",
    "venv",
    "node_modules",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".tox",
)
"""Folders that no job needs, at any depth: histories, environments, caches."""

OUTPUTS = ("outputs", "results", "wandb")
"""Folders at the top that earlier runs wrote."""

IGNORE_FILES = (".gitignore", ".rayignore")
_SECRET_LOOKING = re.compile(
    r"\.env(\..+)?|env\.yaml|.+\.(pem|key|p12|pfx|jks|keystore)|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|\.netrc|\.pgpass"
    r"|\.npmrc|\.pypirc|credentials(\.json)?|auth_token|\.git-credentials",
    re.IGNORECASE,
)
_NOT_SECRET = re.compile(r".+\.(example|sample|template|dist|pub)", re.IGNORECASE)
_MEGABYTE = 1_000_000
_LARGEST = 5
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Upload:
    """What would be uploaded.

    Args:
        root: The directory, absolute.
        files: Size in bytes by path relative to it, ``/`` between its parts, sorted.
        left_out: Why each folder or file that is left out is, by its path; what is below it is not listed.
        secret_looking: Files that look as if they held credentials.
        unreadable: Files that cannot be read, or links that lead nowhere.
    """

    root: Path
    files: Mapping[str, int] = field(repr=False)
    left_out: Mapping[str, str] = field(repr=False)
    secret_looking: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(self.files.values())

    def largest_folders(self) -> list[tuple[str, int]]:
        """Return the five folders at the top, ``.`` for files beside them, that hold most; bytes, largest first."""
        sizes: Counter[str] = Counter()
        for path, size in self.files.items():
            sizes[path.split("/", 1)[0] if "/" in path else "."] += size
        return sizes.most_common(_LARGEST)

    def summary(self) -> list[str]:
        """Return lines for people: how much, the largest folders, what is left out."""
        lines = [f"{len(self.files)} files, {_size(self.total_bytes)}, from {self.root}"]
        lines += [f"  {_size(size)}  {name}" for name, size in self.largest_folders()]
        if self.left_out:
            names = sorted(self.left_out)
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            lines.append(f"left out: {', '.join(names[:_SHOWN])}{more}")
        return lines


def survey(root: Path, excludes: Sequence[str] = ()) -> Upload:
    """Look at what a working directory would upload.

    Args:
        root: The directory.
        excludes: Patterns of what is left out, as ``.gitignore`` writes them; ``!pattern`` keeps what another left out.

    Raises:
        SettingsError: It is no directory, or a pattern is none.
        StorageError: It cannot be listed.
    """
    root = root.absolute()
    if not root.is_dir():
        raise SettingsError(str(root), "", "is no directory", "name the directory that the job needs, or leave it out")
    found = _Survey(root, _patterns(excludes, "excludes"))
    found.walk(root, "", (root.resolve(),), [])
    files = dict(sorted(found.files.items()))
    secret = tuple(path for path in files if _looks_secret(path.rsplit("/", 1)[-1]))
    return Upload(root, files, found.left_out, secret, tuple(sorted(found.unreadable)))


def check_upload(upload: Upload, *, max_upload_mb: int) -> None:
    """Make sure that an upload holds no surprise.

    Args:
        upload: What would be uploaded.
        max_upload_mb: Largest size, in units of 1,000,000 bytes.

    Raises:
        SettingsError: It is too large, or holds what looks like credentials or what cannot be read; every reason is
            there with what to do.
    """
    place = str(upload.root)
    remedy = "name it in compute.<name>.excludes or in .rayignore"
    problems: list[str] = []
    if upload.total_bytes > max_upload_mb * _MEGABYTE:
        largest = ", ".join(f"{name} ({_size(size)})" for name, size in upload.largest_folders())
        allowed = f"max_upload_mb allows {max_upload_mb} MB"
        problems.append(f"{_size(upload.total_bytes)} would be uploaded, {allowed}; largest: {largest}")
    if upload.secret_looking:
        problems.append(
            f"looks like credentials, and every user of the cluster could read it: {_some(upload.secret_looking)}"
        )
    if upload.unreadable:
        problems.append(f"cannot be read: {_some(upload.unreadable)}")
    if not upload.files:
        problems.append("nothing would be uploaded")
    if problems:
        raise SettingsError(place, "working_dir", "; ".join(problems), remedy)


def check_inputs(upload: Upload | None, inputs: Iterable[str], *, shipped: Iterable[Path] = ()) -> None:
    """Make sure that the files that runs name by relative paths will be where the job runs.

    Args:
        upload: What is uploaded, None for nothing.
        inputs: Files, as settings write them. Absolute paths are taken to be on shared storage.
        shipped: Directories that every installation of the package has, where settings files are looked for, too.

    Raises:
        SettingsError: A file would be missing; every such file is there with the reason.
    """
    missing = missing_inputs(upload, inputs, shipped=shipped)
    if missing:
        place = "working_dir" if upload is None else str(upload.root)
        remedy = (
            "put it on shared storage and give its absolute path, or let its folder be uploaded: '!folder/' in excludes"
        )
        raise SettingsError(place, "", f"would be missing where the job runs: {'; '.join(missing)}", remedy)


def missing_inputs(upload: Upload | None, inputs: Iterable[str], *, shipped: Iterable[Path] = ()) -> list[str]:
    """Return which of the files that :func:`check_inputs` looks at would be missing, each with the reason."""
    roots = list(shipped)
    missing = []
    for name in dict.fromkeys(inputs):
        path = os.path.normpath(name)
        if Path(name).is_absolute() or any((root / path).is_file() for root in roots):
            continue
        why = _missing(upload, path)
        if why:
            missing.append(f"{name} {why}")
    return missing


def copy_upload(upload: Upload, target: Path) -> None:
    """Copy exactly the files of an upload, links followed, into an existing empty directory.

    Ray is then given that directory: it holds no ignore file of the surveyed one, so nothing more is left out.

    Raises:
        StorageError: A file cannot be copied, or is not what was looked at; the message names it.
    """
    for path, size in upload.files.items():
        source, copy = upload.root / path, target / path
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            shutil.copymode(source, copy)
            found = copy.stat().st_size
        except OSError as error:
            raise StorageError(f"{source}: cannot be copied for the upload: {error}") from error
        if found != size:
            raise StorageError(f"{source}: changed from {size} to {found} bytes while it was copied; submit again")


def ray_surprises(environ: Mapping[str, str]) -> list[str]:
    """Return what in the environment would change the job's interpreter behind the user's back, a sentence each.

    Args:
        environ: The environment of whoever submits.
    """
    found = []
    hook = environ.get("RAY_RUNTIME_ENV_HOOK", "")
    if hook:
        found.append(
            f"RAY_RUNTIME_ENV_HOOK is {hook!r}: it may rebuild the environment of the job's workers; unset it, and "
            "install the package on the nodes or upload a working directory"
        )
    if any(name == "UV" or name.startswith("UV_RUN") for name in environ):
        found.append(
            "`uv run` started this command: with an uploaded working directory, workers build an environment of their "
            "own or miss this one; activate the environment and call gym-ray itself"
        )
    return found


class _Survey:
    """One walk through a working directory."""

    def __init__(self, root: Path, excludes: pathspec.GitIgnoreSpec) -> None:
        self.root, self._excludes = root, excludes
        self.files: dict[str, int] = {}
        self.left_out: dict[str, str] = {}
        self.unreadable: list[str] = []

    def walk(
        self,
        directory: Path,
        relative: str,
        parents: tuple[Path, ...],
        ignores: list[tuple[str, str, pathspec.GitIgnoreSpec]],
    ) -> None:
        """Take a directory, with the ignore files of those above it; links are followed, but not in circles."""
        ignores = [*ignores, *_ignore_files(directory, relative)]
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError as error:
            if not relative:
                raise StorageError(f"{directory}: cannot be listed: {error.strerror}") from error
            self.unreadable.append(relative)
            return
        for entry in entries:
            path = f"{relative}/{entry.name}" if relative else entry.name
            is_dir = entry.is_dir()
            why = self._left_out(path, entry.name, is_dir, ignores)
            if why:
                self.left_out[path] = why
            elif is_dir:
                real = Path(entry.path).resolve()
                if real in parents:
                    self.left_out[path] = "a link to a folder above it"
                else:
                    self.walk(Path(entry.path), path, (*parents, real), ignores)
            elif entry.is_file() and os.access(entry.path, os.R_OK):
                self.files[path] = entry.stat().st_size
            else:
                self.unreadable.append(path)

    def _left_out(
        self, path: str, name: str, is_dir: bool, ignores: Iterable[tuple[str, str, pathspec.GitIgnoreSpec]]
    ) -> str:
        tried = f"{path}/" if is_dir else path
        own = self._excludes.check_file(tried).include
        if own is not None:
            return "excludes" if own else ""
        if is_dir and name in ALWAYS_LEFT_OUT:
            return "no job needs it"
        if is_dir and path in OUTPUTS:
            return "earlier runs wrote it"
        if name in IGNORE_FILES:
            return "its rules are applied here"
        verdict = ""
        for where, base, rules in ignores:
            said = rules.check_file(tried[len(base) :]).include
            if said is not None:
                verdict = where if said else ""
        return verdict


def _ignore_files(directory: Path, relative: str) -> Iterator[tuple[str, str, pathspec.GitIgnoreSpec]]:
    base = f"{relative}/" if relative else ""
    for name in IGNORE_FILES:
        path = directory / name
        if path.is_file():
            try:
                lines = path.read_text("utf-8", "surrogateescape").splitlines()
            except OSError as error:
                raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
            yield f"{base}{name}", base, _patterns(lines, str(path))


def _patterns(lines: Sequence[str], where: str) -> pathspec.GitIgnoreSpec:
    try:
        return pathspec.GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise SettingsError(
            where, "", f"holds a pattern that is none: {error}", "write it as .gitignore does"
        ) from None


def _missing(upload: Upload | None, path: str) -> str:
    if upload is None:
        return "(a relative path, and no working directory is uploaded)"
    if path.startswith("../"):
        return "(outside of the working directory)"
    if path in upload.files:
        return ""
    parts = path.split("/")
    for length in range(1, len(parts) + 1):
        above = "/".join(parts[:length])
        if above in upload.left_out:
            return f"({above} is left out: {upload.left_out[above]})"
    return "(there is no such file)"


def _looks_secret(name: str) -> bool:
    return _SECRET_LOOKING.fullmatch(name) is not None and _NOT_SECRET.fullmatch(name) is None


def _size(size: int) -> str:
    return f"{size / _MEGABYTE:.1f} MB" if size >= _MEGABYTE // 10 else f"{size / 1000:.1f} kB"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
