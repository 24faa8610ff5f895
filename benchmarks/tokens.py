"""What exact tokens cost: keeping a record, hashing, finding a parent, building a row; time, memory and disk.

Every measurement runs in a fresh process; see ``tokens_probes.py``. Ratios are of processor time, which other work on
the machine disturbs least, and of the least that was measured, because other work only ever adds. Memory is what the
kernel says (RSS), of rollouts that are all held: snapshot, build and row; what their records hold besides tokens is
measured by itself and taken off.

    .venv/bin/python benchmarks/tokens.py            the whole run, about two minutes
    .venv/bin/python benchmarks/tokens.py --quick    smaller and fewer rounds, for a look
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"

WANTED = {
    "append_4000_over_10": 1.2,
    "append_bytes_4000_over_10": 1.2,
    "begin_4000_over_10": 1.2,
    "digest_over_sha256_100k": 2.0,
    "resolve_100_over_10": 2.0,
    "cold_resolve_over_orjson": 10.0,
    "build_bytes_per_token": 16.0,
    "build_time_4_over_1": 4.4,
    "disk_bytes_per_token_4_over_1": 1.1,
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


def least(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Return the least of every value."""
    return {name: min(found[name] for found in rounds) for name in rounds[0]}


def several(plan: Plan, probe: str, scratch: Path, size: int, count: int) -> dict[str, float]:
    """Return the least of several processes, each with a directory of its own."""
    rounds = []
    for _ in range(plan.processes):
        with tempfile.TemporaryDirectory(dir=scratch) as directory:
            rounds.append(fresh(probe, Path(directory), size, count))
    return least(rounds)


def measure_append(plan: Plan, scratch: Path) -> dict[str, float]:
    found = several(plan, "append", scratch, plan.calls, plan.samples)
    figures = {"append_bytes_4000_over_10": found["append_long_bytes"] / found["append_short_bytes"]}
    for name in ("append", "begin"):
        late, early = found[f"{name}_long_us"], found[f"{name}_short_us"]
        figures[f"{name}_4000_over_10"] = late / early
        sizes = f"{found[f'{name}_long_bytes']:.0f} and {found[f'{name}_short_bytes']:.0f} bytes"
        print(f"{name}: {late:.0f} us at call {plan.calls}, {early:.0f} us at call 10; {sizes} written")
    return figures


def measure_digest(plan: Plan, scratch: Path) -> dict[str, float]:
    found = several(plan, "digest", scratch, plan.digest_tokens, plan.samples)
    digest_us, sha256_us = found["digest_s"] * 1e6, found["sha256_s"] * 1e6
    print(f"digest of {plan.digest_tokens} tokens: {digest_us:.0f} us, sha256 of its bytes: {sha256_us:.0f} us")
    return {"digest_over_sha256_100k": digest_us / sha256_us}


def measure_resolve(plan: Plan, scratch: Path, written: Path) -> dict[str, float]:
    warm = several(plan, "resolve", scratch, plan.turns, 5)
    late, early = warm["late_us"], warm["early_us"]
    print(f"resolving, one process: {late:.0f} us at turn {plan.turns}, {early:.0f} us at turn {plan.turns // 10}")
    cold = least([fresh("cold", written, plan.turns, plan.rollouts) for _ in range(plan.processes)])
    resolve, parse = cold["resolve_us"], cold["parse_us"]
    size = cold["request_bytes"] / 1000
    print(
        f"resolving, cold: {resolve:.0f} us at turn {plan.turns + 1}; orjson, request of {size:.0f} kB: {parse:.0f} us"
    )
    return {"resolve_100_over_10": late / early, "cold_resolve_over_orjson": resolve / parse}


def measure_build(plan: Plan, written: Path) -> dict[str, float]:
    content = fresh("content", written, plan.turns, plan.rollouts)["content_rss_bytes_per_token"]
    total_s: list[float] = []
    figures: dict[str, float] = {}
    for scale in (1, 2, 4):
        rounds = [fresh("build", written, scale * plan.turns, plan.rollouts_of(scale)) for _ in range(plan.processes)]
        found = least(rounds)
        freeze_ms, build_ms, row_ms = (found[name] * 1000 for name in ("freeze_s", "build_s", "row_s"))
        total_s.append(found["freeze_s"] + found["build_s"] + found["row_s"])
        rss, peak = (max(one[f"{name}_bytes_per_token"] for one in rounds) for name in ("rss", "peak"))
        print(
            f"{found['tokens']:.0f} tokens in {scale * plan.turns} turns: freeze {freeze_ms:.1f} ms, build "
            f"{build_ms:.1f} ms, row {row_ms:.1f} ms; {rss:.1f} bytes a token held, {peak:.1f} at most"
        )
        if scale == 1:
            figures = {"held_bytes_per_token": rss, "content_bytes_per_token": content}
            print(f"    of these {content:.1f} for what the records hold besides tokens, as parsed")
    return figures | {
        "build_bytes_per_token": figures["held_bytes_per_token"] - content,
        "build_time_2_over_1": total_s[1] / total_s[0],
        "build_time_4_over_1": total_s[2] / total_s[0],
    }


def measure_disk(plan: Plan, written: Path) -> dict[str, float]:
    """Write the rollouts that others measure."""
    sizes = {
        turns: fresh("write", written, turns, count)["disk_bytes_per_token"]
        for turns, count in (
            (plan.turns // 4, 2),
            *((scale * plan.turns, plan.rollouts_of(scale)) for scale in (1, 2, 4)),
        )
    }
    shown = ", ".join(f"{size:.2f} after {turns} turns" for turns, size in sizes.items())
    print(f"bytes on the disk for a new token: {shown}")
    short, long = sizes[plan.turns // 4], sizes[plan.turns]
    return {"disk_bytes_per_token": long, "disk_bytes_per_token_4_over_1": long / short}


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
