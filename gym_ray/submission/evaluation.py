"""``python -m gym_ray.submission.evaluation DIR``: ``gym-ray eval run`` with the arguments in a benchmark's directory.

A command line is there for every user of the machine, and Ray shows it; arguments may hold credentials. So they are
read here, from the file that only its owner may read, and never stand on a command line.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from gym_ray.errors import StorageError
from gym_ray.submission.arguments import read_arguments

__all__ = ["main"]


def main(directory: str) -> None:
    """Run the command in this process; it ends the process with its own exit code."""
    try:
        arguments = read_arguments(Path(directory))
    except StorageError as error:
        sys.exit(f"error: {error}")
    sys.argv[1:] = ["eval", "run", *arguments.eval_run]
    runpy.run_module("gym_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
