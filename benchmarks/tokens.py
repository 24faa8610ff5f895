"""What exact tokens cost: keeping a record, hashing, finding a parent, building a row; time, memory and disk.

Every measurement runs in fresh processes; see ``tokens_probes.py`` and, for what is measured, ``tokens_rollouts.py``.
Time is processor time, which other work on the machine disturbs least, and still it does: it takes turns at the caches
and the clock. So two things that are compared are measured in turns, and a figure is the least of several processes
over the least (other work only ever adds), or, where both take as long, the median of the ratios of many windows. Each
line also says between what the ratios of the single processes lay.

Memory is what the kernel says (RSS), of rollouts that are all held: snapshot, build and row; what their records hold
besides tokens is measured by itself and taken off.

    .venv/bin/python benchmarks/tokens.py            the whole run, a minute and a half on an idle machine
    .venv/bin/python benchmarks/tokens.py --quick    smaller and fewer rounds, for a look
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
USUAL = "10-32"
KINDS = (USUAL, "10-64", "50-32", "50-64")
"""Tokens that the policy samples, in percent, and bits of a log probability."""

WANTED = {
    "append_4000_over_10": 1.2,
    "append_bytes_4000_over_10": 1.2,
    "begin_4000_over_10": 1.2,
    "begin_bytes_4000_over_10": 1.2,
    "digest_over_sha256_100k": 2.0,
    "resolve_100_over_10": 2.0,
    "cold_resolve_over_orjson": 10.0,
    "build_bytes_per_token": 16.0,
    "build_bytes_per_token_any": 16.0,
    "build_time_4_over_1": 4.4,
    "disk_bytes_per_token_4_over_1": 1.1,
    "disk_bytes_per_token_16_over_1": 1.1,
}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    processes: int = 3
    calls: int = 4000
    samples: int = 200
    digest_tokens: int = 100_000
    turns: int = 100
    rollouts: int = 21

    @property
    def early(self) -> int:
        """The early turn that the last one is compared with."""
        return max(self.turns // 10, 2)

    def rollouts_of(self, scale: int) -> int:
        """Rollouts of ``scale`` times as many turns: about as many tokens in all."""
        return max(3, self.rollouts // scale)


QUICK = Plan(1, 200, 20, 10_000, 20, 6)


def fresh(probe: str, directory: Path, size: int, count: int) -> dict[str, float]:
    """Measure in a new process."""
    command = [sys.executable, __file__, "--probe", probe, str(directory), str(size), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"measuring {probe} failed; its own message is above")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def several(plan: Plan, probe: str, directory: Path, size: int, count: int) -> list[dict[str, float]]:
    """Return what several processes find, each in a directory of its own."""
    rounds = []
    for _ in range(plan.processes):
        with tempfile.TemporaryDirectory(dir=directory) as own:
            rounds.append(fresh(probe, Path(own), size, count))
    return rounds


def least(rounds: list[dict[str, float]], name: str) -> float:
    return min(found[name] for found in rounds)


def middle(rounds: list[dict[str, float]], name: str) -> float:
    return statistics.median(found[name] for found in rounds)


def between(ratios: list[float]) -> str:
    """Say how far the ratios of single processes lie apart."""
    return f"{min(ratios):.3g} to {max(ratios):.3g} in {len(ratios)} processes"


def measure_append(plan: Plan, scratch: Path) -> dict[str, float]:
    rounds = several(plan, "append", scratch, plan.calls, plan.samples)
    figures = {
        f"{name}_bytes_4000_over_10": least(rounds, f"{name}_long_bytes") / least(rounds, f"{name}_short_bytes")
        for name in ("append", "begin")
    }
    for name in ("append", "begin"):
        figures[f"{name}_4000_over_10"] = middle(rounds, f"{name}_ratio")
        late, early = least(rounds, f"{name}_long_us"), least(rounds, f"{name}_short_us")
        sizes = f"{least(rounds, f'{name}_long_bytes'):.0f} and {least(rounds, f'{name}_short_bytes'):.0f} bytes"
        spread = between([found[f"{name}_ratio"] for found in rounds])
        print(f"{name}: {late:.0f} us at call {plan.calls}, {early:.0f} us at call 10; {sizes} written; {spread}")
    return figures


def measure_digest(plan: Plan, scratch: Path) -> dict[str, float]:
    rounds = several(plan, "digest", scratch, plan.digest_tokens, plan.samples)
    digest_us, sha256_us = least(rounds, "digest_s") * 1e6, least(rounds, "sha256_s") * 1e6
    spread = between([found["digest_s"] / found["sha256_s"] for found in rounds])
    print(
        f"digest: {digest_us:.0f} us for {plan.digest_tokens} tokens, sha256 of its bytes {sha256_us:.0f} us; {spread}"
    )
    return {"digest_over_sha256_100k": digest_us / sha256_us}


def measure_resolve(plan: Plan, scratch: Path, written: Path) -> dict[str, float]:
    warm = several(plan, "resolve", scratch, plan.turns, 5)
    late, early = least(warm, "late_us"), least(warm, "early_us")
    spread = between([found["ratio"] for found in warm])
    print(f"resolving, one process: {late:.0f} us at turn {plan.turns}, {early:.0f} us at turn {plan.early}; {spread}")
    cold = [fresh("cold", written, plan.turns, plan.rollouts) for _ in range(plan.processes)]
    resolve, parse, lines = (least(cold, f"{name}_us") for name in ("resolve", "parse", "lines"))
    size, spread = cold[0]["request_bytes"] / 1000, between([found["ratio"] for found in cold])
    print(
        f"resolving, cold: {resolve:.0f} us at turn {plan.turns + 1}; orjson: {parse:.0f} us for the request of "
        f"{size:.0f} kB, {lines:.0f} us for the rollout's lines; medians {spread}"
    )
    return {
        "resolve_100_over_10": late / early,
        "cold_resolve_over_orjson": resolve / parse,
        "cold_lines_over_orjson": lines / parse,
    }


def measure_build(plan: Plan, written: Path) -> dict[str, float]:
    total_s: list[float] = []
    for scale in (1, 2, 4):
        count, turns = plan.rollouts_of(scale), scale * plan.turns
        rounds = [fresh(f"build@{USUAL}", written, turns, count) for _ in range(plan.processes)]
        steps = {name: least(rounds, f"{name}_s") for name in ("freeze", "build", "row")}
        total_s.append(sum(steps.values()))
        shown = ", ".join(f"{name} {step_s * 1000:.1f} ms" for name, step_s in steps.items())
        print(f"{rounds[0]['tokens']:.0f} tokens in {turns} turns: {shown}")
    memory = {kind: measure_memory(plan, written, kind) for kind in KINDS}
    return {
        "build_bytes_per_token": memory[USUAL],
        "build_bytes_per_token_any": max(memory.values()),
        "build_time_2_over_1": total_s[1] / total_s[0],
        "build_time_4_over_1": total_s[2] / total_s[0],
    }


def measure_memory(plan: Plan, written: Path, kind: str) -> float:
    """Return the bytes a token that freeze, build and row hold beside content."""
    held, content = (fresh(f"{probe}@{kind}", written, plan.turns, plan.rollouts) for probe in ("build", "content"))
    rss, peak = held["rss_bytes_per_token"], held["peak_bytes_per_token"]
    besides = content["content_rss_bytes_per_token"]
    share, bits = kind.split("-")
    print(
        f"{share} % sampled, log probs of {bits} bits: {rss:.1f} bytes a token held, {peak:.1f} at most, of these "
        f"{besides:.1f} for what the records hold besides tokens, as parsed"
    )
    return max(rss, peak) - besides


def measure_disk(plan: Plan, written: Path) -> dict[str, float]:
    """Write the rollouts that others measure."""
    quarter = plan.turns // 4
    counts = {quarter: 2, **{scale * plan.turns: plan.rollouts_of(scale) for scale in (1, 2, 4)}}
    sizes = {
        turns: fresh(f"write@{USUAL}", written, turns, count)["disk_bytes_per_token"] for turns, count in counts.items()
    }
    for kind in KINDS:
        if kind != USUAL:
            fresh(f"write@{kind}", written, plan.turns, plan.rollouts)
    shown = ", ".join(f"{size:.2f} after {turns} turns" for turns, size in sizes.items())
    print(f"bytes on the disk for a new token: {shown}")
    return {
        "disk_bytes_per_token": sizes[plan.turns],
        "disk_bytes_per_token_4_over_1": sizes[plan.turns] / sizes[quarter],
        "disk_bytes_per_token_16_over_1": sizes[4 * plan.turns] / sizes[quarter],
    }


def run(plan: Plan, scratch: Path) -> dict[str, float]:
    written = scratch / "written"
    written.mkdir()
    figures = measure_append(plan, scratch)
    figures |= measure_digest(plan, scratch)
    figures |= measure_disk(plan, written)
    figures |= measure_resolve(plan, scratch, written)
    figures |= measure_build(plan, written)
    return {name: round(value, 4) for name, value in figures.items()}


def probe(arguments: list[str]) -> dict[str, float]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks.tokens_probes import PROBES

    name, directory, size, count = arguments
    return PROBES[name](Path(directory), int(size), int(count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds, for a look")
    parser.add_argument("--probe", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        print(json.dumps(probe(options.probe)))
        return
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RESULTS) as scratch:
        figures = run(QUICK if options.quick else Plan(), Path(scratch))
    for name, value in figures.items():
        print(f"{name}: {value:.3g}" + (f" (wanted: {WANTED[name]:g} or less)" if name in WANTED else ""))
    setup = {"quick": options.quick, "cpus": os.cpu_count(), "load_average": os.getloadavg()}
    target = RESULTS / "tokens.json"
    target.write_text(json.dumps({"name": "tokens", "figures": figures, "setup": setup}, indent=2) + "\n")
    print(f"written: {target}")


if __name__ == "__main__":
    main()
