"""What staging costs: a call's hashes, a durable segment, memory that waits, one call read back, large media, a row.

Every measurement runs in fresh processes; see ``staging_probes.py``. Two things that are compared are measured in
turns in one process, and each line says between what the ratios of the single processes lay. Hashing and verifying
are processor time; what waits for the disk is time on the clock, so a busy disk shows in both halves of a ratio.

    .venv/bin/python benchmarks/staging.py            the whole run, two to three minutes on an idle machine
    .venv/bin/python benchmarks/staging.py --quick    smaller and fewer rounds, for a look
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from measuring import AT_LEAST, AT_MOST, MIB, Processes, main, middle, ratio

WANTED = {
    "complete_call_over_sha256_100k": (AT_MOST, 2.0),
    "complete_call_lists_over_sha256_100k": (AT_MOST, 6.0),
    "complete_call_child_over_sha256": (AT_MOST, 2.0),
    "stage_over_pyarrow_64": (AT_LEAST, 0.6),
    "stage_mean_batch_64": (AT_LEAST, 16.0),
    "stage_over_file_per_call": (AT_LEAST, 4.0),
    "staging_bytes_per_token": (AT_MOST, 12.0),
    "commit_rss_over_bound": (AT_MOST, 1.0),
    "fetch_4096_over_16": (AT_MOST, 2.0),
    "fetch_requests": (AT_MOST, 3.0),
    "fetch_kib": (AT_MOST, 512.0),
    "attachment_rss_mib": (AT_MOST, 128.0),
    "verify_4_over_1": (AT_MOST, 4.4),
}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    processes: int = 3
    tokens: int = 100_000
    rounds: int = 30
    callers: int = 64
    calls: int = 1536
    waiting_tokens: int = 12_000_000
    stored: int = 4096
    attachment_mib: int = 1024
    row_tokens: int = 100_000

    @property
    def measured(self) -> Processes:
        """Measures in fresh processes."""
        return Processes(Path(__file__), self.processes)


QUICK = Plan(1, 10_000, 5, 64, 256, 1_000_000, 256, 64, 10_000)


def measure_complete(plan: Plan, scratch: Path) -> dict[str, float]:
    figures = {}
    for probe, figure in (
        ("complete_arrays", "complete_call_over_sha256_100k"),
        ("complete_lists", "complete_call_lists_over_sha256_100k"),
        ("complete_child", "complete_call_child_over_sha256"),
    ):
        rounds = plan.measured.several(probe, scratch, plan.tokens, plan.rounds)
        figures[figure], spread = ratio(rounds, "call_s", "sha256_s")
        call_us, sha256_us = middle(rounds, "call_s") * 1e6, middle(rounds, "sha256_s") * 1e6
        print(f"{probe}: {call_us:.0f} us, sha256 of its {rounds[0]['bytes']:.0f} bytes {sha256_us:.0f} us; {spread}")
    return figures


def measure_stage(plan: Plan, scratch: Path) -> dict[str, float]:
    rounds = plan.measured.several("stage", scratch, plan.callers, plan.calls)
    over_pyarrow, spread = ratio(rounds, "calls_per_s", "pyarrow_calls_per_s")
    over_single, single_spread = ratio(rounds, "calls_per_s", "single_calls_per_s")
    print(
        f"{plan.callers} callers, 2000 tokens a call: {middle(rounds, 'calls_per_s'):.0f} calls/s in batches of "
        f"{middle(rounds, 'mean_batch'):.1f}; plain pyarrow {middle(rounds, 'pyarrow_calls_per_s'):.0f}; {spread}; "
        f"a file a call {middle(rounds, 'single_calls_per_s'):.0f}; {single_spread}"
    )
    return {
        "stage_over_pyarrow_64": over_pyarrow,
        "stage_mean_batch_64": middle(rounds, "mean_batch"),
        "stage_over_file_per_call": over_single,
    }


def measure_memory(plan: Plan, scratch: Path) -> dict[str, float]:
    rounds = plan.measured.several("waiting", scratch, plan.waiting_tokens, 200)
    waiting = max(found["rss_bytes_per_token"] for found in rounds)
    bound = 32 * rounds[0]["tokens"] + 64 * MIB
    peak = max(found["commit_rss_bytes"] for found in rounds)
    print(
        f"{rounds[0]['tokens']:.0f} tokens wait: {waiting:.2f} bytes a token; writing them takes {peak / MIB:.0f} MiB "
        f"in all; 32 bytes a token and 64 MiB would be {bound / MIB:.0f} MiB"
    )
    return {"staging_bytes_per_token": waiting, "commit_rss_over_bound": peak / bound}


def measure_fetch(plan: Plan, scratch: Path) -> dict[str, float]:
    stores = {}
    for count in (16, plan.stored):
        stores[count] = scratch / f"store-{count}"
        plan.measured.fresh("fill", stores[count], plan.callers, count)
    found = {
        count: [plan.measured.fresh("fetch", where, 0, plan.rounds) for _ in range(plan.processes)]
        for count, where in stores.items()
    }
    large, small = found[plan.stored], found[16]
    ratios = [many["fetch_s"] / few["fetch_s"] for many, few in zip(large, small, strict=True)]
    requests, kib = max(one["requests"] for one in large), max(one["bytes"] for one in large) / 1024
    print(
        f"one call, a fresh source: {middle(large, 'fetch_s') * 1e3:.2f} ms of {plan.stored} calls in "
        f"{requests:.0f} requests and {kib:.0f} KiB, {middle(small, 'fetch_s') * 1e3:.2f} ms of 16; "
        f"{min(ratios):.3g} to {max(ratios):.3g} in {len(ratios)} processes"
    )
    return {"fetch_4096_over_16": statistics.median(ratios), "fetch_requests": requests, "fetch_kib": kib}


def measure_attachment(plan: Plan, scratch: Path) -> dict[str, float]:
    rounds = plan.measured.several("attachment", scratch, plan.attachment_mib, 1)
    extra = max(found["extra_rss_bytes"] for found in rounds) / MIB
    print(
        f"an attachment of {plan.attachment_mib} MiB: {extra:.0f} MiB more, "
        f"{middle(rounds, 'stage_s'):.1f} s; one copy of the bytes to a synced file {middle(rounds, 'copy_s'):.1f} s"
    )
    return {"attachment_rss_mib": extra}


def measure_verify(plan: Plan, scratch: Path) -> dict[str, float]:
    small = plan.measured.several("verify", scratch, plan.row_tokens, 25)
    large = plan.measured.several("verify", scratch, 4 * plan.row_tokens, 100)
    took = [middle(rounds, "verify_s") * 1e3 for rounds in (small, large)]
    print(f"verify and linearise: {took[0]:.1f} ms for 25 calls, {took[1]:.1f} ms for four times as much")
    return {"verify_4_over_1": took[1] / took[0]}


def run(quick: bool, scratch: Path) -> dict[str, float]:
    plan, figures = QUICK if quick else Plan(), {}
    for measure in (
        measure_complete,
        measure_stage,
        measure_memory,
        measure_fetch,
        measure_attachment,
        measure_verify,
    ):
        figures |= measure(plan, scratch)
    return figures


if __name__ == "__main__":
    main(__file__, "benchmarks.staging_probes", __doc__, WANTED, run)
