"""What every benchmark does: measure in fresh processes, compare within one run, say what was wanted, write it down."""

from __future__ import annotations

import argparse
import importlib
import json
import operator
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
MIB = 1024 * 1024

Rounds = list[dict[str, float]]
AT_MOST, AT_LEAST = operator.le, operator.ge
Wanted = Mapping[str, tuple[Callable[[float, float], bool], float]]


@dataclass(frozen=True)
class Processes:
    """Measures probes of one script in processes of their own.

    Attributes:
        script: File of the benchmark; it must call :func:`main`.
        count: How many processes :meth:`several` starts.
    """

    script: Path
    count: int

    def fresh(self, probe: str, directory: Path, size: int, count: int) -> dict[str, float]:
        """Measure in a new process."""
        command = [sys.executable, str(self.script), "--probe", probe, str(directory), str(size), str(count)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"measuring {probe} failed; its own message is above")
        found: dict[str, float] = json.loads(done.stdout)
        return found

    def several(self, probe: str, scratch: Path, size: int, count: int) -> Rounds:
        """Return what several processes find, each in a directory of its own."""
        rounds = []
        for _ in range(self.count):
            with tempfile.TemporaryDirectory(dir=scratch) as own:
                rounds.append(self.fresh(probe, Path(own), size, count))
        return rounds


def middle(rounds: Rounds, name: str) -> float:
    """Return the median over the processes."""
    return statistics.median(found[name] for found in rounds)


def least(rounds: Rounds, name: str) -> float:
    """Return the least over the processes."""
    return min(found[name] for found in rounds)


def between(ratios: list[float]) -> str:
    """Say how far the ratios of single processes lie apart."""
    return f"{min(ratios):.3g} to {max(ratios):.3g} in {len(ratios)} processes"


def ratio(rounds: Rounds, name: str, base: str) -> tuple[float, str]:
    """Return the median of the ratios of single processes, and between what they lie."""
    ratios = [found[name] / found[base] for found in rounds]
    return statistics.median(ratios), between(ratios)


def memory_bytes(field: str) -> int:
    """Return what the kernel says about this process: ``VmRSS`` or ``VmHWM``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) << 10


def main(
    script: str, probes: str, doc: str | None, wanted: Wanted, run: Callable[[bool, Path], dict[str, float]]
) -> None:
    """Read the command line, and measure one probe or run the whole.

    Args:
        script: File of the benchmark.
        probes: Module whose ``PROBES`` are the measurements; loaded in their processes only.
        doc: Text for ``--help``.
        wanted: Bounds by figure.
        run: Takes ``quick`` and a scratch directory, prints the raw terms and returns the figures.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds, for a look")
    parser.add_argument("--probe", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        name, directory, size, count = options.probe
        print(json.dumps(importlib.import_module(probes).PROBES[name](Path(directory), int(size), int(count))))
        return
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RESULTS) as scratch:
        figures = {name: round(value, 4) for name, value in run(options.quick, Path(scratch)).items()}
    for name, value in figures.items():
        print(verdict(name, value, wanted))
    setup = {"quick": options.quick, "cpus": os.cpu_count(), "load_average": os.getloadavg()}
    name = Path(script).stem
    target = RESULTS / f"{name}.json"
    target.write_text(json.dumps({"name": name, "figures": figures, "setup": setup}, indent=2) + "\n")
    print(f"written: {target}")


def verdict(name: str, value: float, wanted: Wanted) -> str:
    """Say what was measured, what was wanted, and whether it was missed."""
    if name not in wanted:
        return f"{name}: {value:.3g}"
    holds, bound = wanted[name]
    words = "or less" if holds is AT_MOST else "or more"
    return f"{name}: {value:.3g} (wanted: {bound:g} {words}{'' if holds(value, bound) else ', MISSED'})"
