"""Describes a directory of skills, so that each record says which skills its agent could have had (D12)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from gym_ray.errors import SettingsError

__all__ = ["describe_skills"]


def describe_skills(directory: Path) -> dict[str, Any]:
    """Return ``name``, ``path``, ``files`` and ``sha256`` of a directory; equal content gives equal digests anywhere.

    The digest covers the relative name and the content of every regular file, in the order of the names.

    Raises:
        SettingsError: It is no directory, is empty, or a file cannot be read.
    """
    digest, files = hashlib.sha256(), 0
    try:
        found = sorted(
            (path.relative_to(directory).as_posix(), path) for path in directory.rglob("*") if path.is_file()
        )
        for name, path in found:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
            encoded = name.encode("utf-8", "surrogateescape")
            digest.update(len(encoded).to_bytes(4, "little") + encoded + content)
            files += 1
    except OSError as error:
        raise SettingsError(str(directory), "skills_ref", f"cannot be read: {error}", "name a directory") from error
    if not files:
        raise SettingsError(str(directory), "skills_ref", "holds no files", "name a directory with the skills")
    return {"name": directory.name, "path": str(directory.absolute()), "files": files, "sha256": digest.hexdigest()}
