"""``python -m gym_ray`` and ``gym-ray``: the command, quiet also when it is interrupted while it loads."""

from __future__ import annotations

import sys

_INTERRUPTED = 130

__all__ = ["main"]


def main() -> None:
    """Run the command; Ctrl-C, whenever it comes, is exit code 130 and no traceback."""
    try:
        from gym_ray.cli.app import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
