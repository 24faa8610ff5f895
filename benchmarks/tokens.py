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

from dataclasses import dataclass
from pathlib import Path

from measuring import AT_MOST, Processes, between, least, main, middle

USUAL = "10-32"
KINDS = (USUAL, "10-64", "50-32", "50-64")
"""Tokens that the policy samples, in percent, and bits of a log probability."""

WANTED = {
    "append_4000_over_10": (AT_MOST, 1.2),
    "append_bytes_4000_over_10": (AT_MOST, 1.2),
    "begin_4000_over_10": (AT_MOST, 1.2),
    "begin_bytes_4000_over_10": (AT_MOST, 1.2),
    "digest_over_sha256_100k": (AT_MOST, 2.0),
    "resolve_100_over_10": (AT_MOST, 2.0),
    "cold_resolve_over_orjson": (AT_MOST, 10.0),
    "build_bytes_per_token": (AT_MOST, 16.0),
    "build_bytes_per_token_any": (AT_MOST, 16.0),
    "build_time_4_over_1": (AT_MOST, 4.4),
    "disk_bytes_per_token_4_over_1": (AT_MOST, 1.1),
    "disk_bytes_per_token_16_over_1": (AT_MOST, 1.1),
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
    def measured(self) -> Processes:
        """Measures in fresh processes."""
        return Processes(Path(__file__), self.processes)

    @property
    def early(self) -> int:
        """The early turn that the last one is compared with."""
        return max(self.turns // 10, 2)

    def rollouts_of(self, scale: int) -> int:
        """Rollouts of ``scale`` times as many turns: about as many tokens in all."""
        return max(3, self.rollouts // scale)


QUICK = Plan(1, 200, 20, 10_000, 20, 6)


def measure_append(plan: Plan, scratch: Path) -> dict[str, float]:
    rounds = plan.measured.several("append", scratch, plan.calls, plan.samples)
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
    rounds = plan.measured.several("digest", scratch, plan.digest_tokens, plan.samples)
    digest_us, sha256_us = least(rounds, "digest_s") * 1e6, least(rounds, "sha256_s") * 1e6
    spread = between([found["digest_s"] / found["sha256_s"] for found in rounds])
    print(
        f"digest: {digest_us:.0f} us for {plan.digest_tokens} tokens, sha256 of its bytes {sha256_us:.0f} us; {spread}"
    )
    return {"digest_over_sha256_100k": digest_us / sha256_us}


def measure_resolve(plan: Plan, scratch: Path, written: Path) -> dict[str, float]:
    warm = plan.measured.several("resolve", scratch, plan.turns, 5)
    late, early = least(warm, "late_us"), least(warm, "early_us")
    spread = between([found["ratio"] for found in warm])
    print(f"resolving, one process: {late:.0f} us at turn {plan.turns}, {early:.0f} us at turn {plan.early}; {spread}")
    cold = [plan.measured.fresh("cold", written, plan.turns, plan.rollouts) for _ in range(plan.processes)]
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
        rounds = [plan.measured.fresh(f"build@{USUAL}", written, turns, count) for _ in range(plan.processes)]
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
    held, content = (
        plan.measured.fresh(f"{probe}@{kind}", written, plan.turns, plan.rollouts) for probe in ("build", "content")
    )
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
        turns: plan.measured.fresh(f"write@{USUAL}", written, turns, count)["disk_bytes_per_token"]
        for turns, count in counts.items()
    }
    for kind in KINDS:
        if kind != USUAL:
            plan.measured.fresh(f"write@{kind}", written, plan.turns, plan.rollouts)
    shown = ", ".join(f"{size:.2f} after {turns} turns" for turns, size in sizes.items())
    print(f"bytes on the disk for a new token: {shown}")
    return {
        "disk_bytes_per_token": sizes[plan.turns],
        "disk_bytes_per_token_4_over_1": sizes[plan.turns] / sizes[quarter],
        "disk_bytes_per_token_16_over_1": sizes[4 * plan.turns] / sizes[quarter],
    }


def run(quick: bool, scratch: Path) -> dict[str, float]:
    plan, written = QUICK if quick else Plan(), scratch / "written"
    written.mkdir()
    figures = measure_append(plan, scratch)
    figures |= measure_digest(plan, scratch)
    figures |= measure_disk(plan, written)
    figures |= measure_resolve(plan, scratch, written)
    figures |= measure_build(plan, written)
    return figures


if __name__ == "__main__":
    main(__file__, "benchmarks.tokens_probes", __doc__, WANTED, run)
