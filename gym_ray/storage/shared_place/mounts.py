"""What the system says of the mount that holds a directory: its kind, its source and its options.

It is told, not tested: messages name it, and only what was tried decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

__all__ = ["MountFacts", "mount_of"]

_OCTAL = re.compile(r"\\([0-7]{3})")
"""How a mount point's blanks, line ends and backslashes are written there."""
_FIRST_FIELDS = 6


@dataclass(frozen=True, slots=True)
class MountFacts:
    """One mount.

    Attributes:
        point: Where it is mounted.
        kind: Its file system, such as ``nfs4`` or ``ext4``.
        source: What is mounted, such as ``server:/export``.
        options: Options of the mount and of its file system.
    """

    point: str
    kind: str
    source: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as ``mount`` would print it."""
        return f"{self.source} on {self.point} type {self.kind} ({','.join(self.options)})"


def mount_of(directory: str, mountinfo: str) -> MountFacts | None:
    """Return the mount that holds a directory; None when the table does not name one.

    Args:
        directory: An absolute path without links in it; it need not exist.
        mountinfo: The text of ``/proc/self/mountinfo``; a line that is not like the others is passed over.
    """
    path, found, longest = PurePosixPath(directory), None, -1
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if "-" not in fields[_FIRST_FIELDS:]:
            continue
        behind = fields[fields.index("-", _FIRST_FIELDS) + 1 :]
        if len(behind) < 2:  # its kind and its source
            continue
        point = PurePosixPath(_plain(fields[4]))
        depth = len(point.parts)
        if path.is_relative_to(point) and depth >= longest:  # a later mount covers an earlier one at its place
            options = dict.fromkeys((*fields[5].split(","), *",".join(behind[2:]).split(",")))
            found = MountFacts(str(point), behind[0], _plain(behind[1]), tuple(option for option in options if option))
            longest = depth
    return found


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda code: chr(int(code[1], 8)), text)
