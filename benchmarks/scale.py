"""What collecting on Ray costs beside the agents: driver, workers, the hand-over of tokens, captures on object stores.

Every measurement runs in fresh processes with a Ray cluster of their own; see ``scale_probes.py``. The engine answers
at once from the model server's own process, so that what is left is ours and Ray's. Collected and bare runs alternate
on the same machine; a no-op Ray call is made by the collector's own process, of which as many are under way at once as
rollouts were. What the figures mean for larger clusters is in ``SCALE.md``.

    .venv/bin/python benchmarks/scale.py            the whole run, about eight minutes on an idle machine
    .venv/bin/python benchmarks/scale.py --quick    smaller and fewer rounds, for a look
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from measuring import AT_LEAST, AT_MOST, MIB, Processes, between, main, middle

CPU_OF = "cpu_s of "
"""Begins the names of what each kind of process used."""
WANTED = {
    "two_workers_over_bare": (AT_LEAST, 0.85),
    "driver_cpu_over_noop": (AT_MOST, 4.0),
    "driver_rss_growth_mib": (AT_MOST, 8.0),
    "handoff_copied_mib": (AT_MOST, 0.0),
    "puts_per_call": (AT_MOST, 1 / 8),
}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    processes: int = 1
    rollouts: int = 10_000
    at_once: int = 1_024
    busy_rollouts: int = 300
    busy_rounds: int = 3
    batch: int = 64
    tokens: int = 8_192
    s3_calls: int = 4_096
    s3_at_once: int = 64

    @property
    def measured(self) -> Processes:
        """Measures in fresh processes."""
        return Processes(Path(__file__), self.processes)


QUICK = Plan(rollouts=2_000, at_once=256, busy_rollouts=60, busy_rounds=1, s3_calls=1_024)


def measure_whole(plan: Plan, scratch: Path) -> dict[str, float]:
    rounds = plan.measured.several("whole", scratch, plan.rollouts, plan.at_once)
    rollout_s = middle(rounds, "cpu_s") / middle(rounds, "finished")
    noop_s, one_s = middle(rounds, "noop_cpu_s"), middle(rounds, "one_noop_cpu_s")
    growth = max(found["rss_late"] - found["rss_early"] for found in rounds) / MIB
    seconds = middle(rounds, "seconds")
    print(
        f"{plan.rollouts} rollouts of 2 calls, {plan.at_once} in flight: {plan.rollouts / seconds:.0f} rollouts/s, "
        f"{middle(rounds, 'calls') / seconds:.0f} calls/s; collector {middle(rounds, 'rss_late') / MIB:.0f} MiB "
        f"({growth:.2f} MiB more than after 1000 rollouts), command {middle(rounds, 'command_rss') / MIB:.0f} MiB; "
        f"longest stall of the collector's loop {middle(rounds, 'stall_ms'):.0f} ms, idle "
        f"{middle(rounds, 'idle_stall_ms'):.1f} ms; most work of the loop between two looks "
        f"{middle(rounds, 'busy_ms'):.0f} ms"
    )
    parts = sorted(name for name in rounds[0] if name.startswith(CPU_OF))
    for name in parts:
        used_s = middle(rounds, name)
        print(f"{name.removeprefix(CPU_OF)}: {1e3 * used_s / plan.rollouts:.2f} ms of processor time a rollout")
    print(
        f"collector: {1e3 * rollout_s:.2f} ms of processor time a rollout; a no-op Ray call {1e3 * noop_s:.2f} ms with "
        f"{plan.at_once} under way, {1e3 * one_s:.2f} ms with one"
    )
    return {
        "driver_cpu_over_noop": rollout_s / one_s,
        "driver_cpu_over_noop_in_bulk": rollout_s / noop_s,
        "driver_rss_growth_mib": growth,
        "rollouts_per_s": plan.rollouts / seconds,
        "longest_stall_ms": middle(rounds, "stall_ms"),
        "most_loop_work_ms": middle(rounds, "busy_ms"),
    }


def measure_workers(plan: Plan, scratch: Path) -> dict[str, float]:
    found = plan.measured.fresh("workers", scratch / "workers", plan.busy_rollouts, plan.busy_rounds)
    turns = range(plan.busy_rounds)
    rates = {
        kind: [statistics.median(found[f"{kind}_{count}_{turn}"] for turn in turns) for count in (1, 2)]
        for kind in ("collected", "bare")
    }
    gains = {
        kind: [found[f"{kind}_2_{turn}"] / found[f"{kind}_1_{turn}"] for turn in turns]
        for kind in ("collected", "bare")
    }
    for kind, (one, two) in rates.items():
        print(f"{kind}: {one:.1f} rollouts/s on one process, {two:.1f} on two; {between(gains[kind])}")
    gain = {kind: statistics.median(ratios) for kind, ratios in gains.items()}
    return {"two_workers_over_bare": gain["collected"] / gain["bare"]}


def measure_handoff(plan: Plan, scratch: Path) -> dict[str, float]:
    found = plan.measured.fresh("handoff", scratch / "handoff", plan.batch, plan.tokens)
    print(
        f"a batch of {plan.batch} rollouts, {found['tokens']:.0f} tokens: {found['bytes'] / MIB:.2f} MiB of columns, "
        f"{found['outside'] / MIB:.2f} MiB of them outside the object store"
    )
    return {"handoff_copied_mib": found["outside"] / MIB}


def measure_captures(plan: Plan, scratch: Path) -> dict[str, float]:
    found = plan.measured.fresh("captures", scratch / "captures", plan.s3_calls, plan.s3_at_once)
    print(
        f"{found['calls']:.0f} calls with {plan.s3_at_once} in flight on an S3 server: {found['puts']:.0f} PUTs, "
        f"{found['calls_per_s']:.0f} calls/s"
    )
    return {"puts_per_call": found["puts"] / found["calls"]}


def run(quick: bool, scratch: Path) -> dict[str, float]:
    plan, figures = QUICK if quick else Plan(), {}
    for measure in (measure_whole, measure_workers, measure_handoff, measure_captures):
        figures |= measure(plan, scratch)
    return figures


if __name__ == "__main__":
    main(__file__, "benchmarks.scale_probes", __doc__, WANTED, run)
