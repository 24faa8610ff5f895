"""The command line of a Ray job: one that finds, on whatever node it lands, an interpreter that has what it needs.

A bare ``python`` is the first on the path of whoever started the head, which need not be the one that Ray runs in.
"""

from __future__ import annotations

import shlex
from pathlib import Path

__all__ = ["entrypoint"]

_DRIVER = "gym_ray.submission.driver"
_FIT = 'import importlib.util as u, sys; sys.exit(not (u.find_spec("ray") and u.find_spec("gym_ray")))'
_NONE_FIT = "gym-ray: no interpreter here has both ray and gym_ray; tried: {}; install gym-ray on the nodes, or name "
_REMEDY = "python: in the compute, or upload a checkout with working_dir:"


def entrypoint(benchmark_dir: Path, *, python: str | None, here: str) -> str:
    """Return the shell command that runs a benchmark's driver.

    Args:
        benchmark_dir: Directory of the benchmark, which the node must have.
        python: The interpreter on the nodes; None takes the first that has Ray and this package, which the working
            directory of the job may hold.
        here: The interpreter of this command, which is tried first: the nodes may share it.
    """
    directory = shlex.quote(str(benchmark_dir))
    if python is not None:
        return f"exec {shlex.quote(python)} -m {_DRIVER} {directory}"
    tried = [here, "python", "python3"]
    words = " ".join(shlex.quote(name) for name in tried)
    problem = shlex.quote(_NONE_FIT.format(", ".join(tried)) + _REMEDY)
    probe = f'"$p" -c {shlex.quote(_FIT)} 2>/dev/null'
    return f'for p in {words}; do {probe} && exec "$p" -m {_DRIVER} {directory}; done; echo {problem} >&2; exit 1'
