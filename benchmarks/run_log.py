"""What a run's own books cost: reading them at a resume, memory of the driver, stalls when many rollouts end at once.

Every measurement runs in fresh processes; see ``run_log_probes.py``. Bytes that a resume reads are those of its read
calls, as the kernel counts them; memory is what the kernel says (RSS). A stall is the time by which a control loop that
wants to run every millisecond comes too late, and what an idle loop of the same process shows is taken off.

    .venv/bin/python benchmarks/run_log.py            the whole run, about two minutes on an idle machine
    .venv/bin/python benchmarks/run_log.py --quick    smaller and fewer rounds, for a look
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from measuring import AT_MOST, MIB, Processes, main, middle

WANTED = {
    "resume_bytes_per_rollout": (AT_MOST, 128.0),
    "driver_bytes_per_row": (AT_MOST, 40.0),
    "driver_growth_mib_1000_to_10000": (AT_MOST, 8.0),
    "driver_stall_ms_512": (AT_MOST, 20.0),
    "server_stall_ms_512": (AT_MOST, 20.0),
}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    processes: int = 3
    finished: int = 100_000
    few_rows: int = 10_000
    many_rows: int = 1_000_000
    rollouts: int = 10_000
    at_once: int = 512

    @property
    def measured(self) -> Processes:
        """Measures in fresh processes."""
        return Processes(Path(__file__), self.processes)


QUICK = Plan(1, 5_000, 1_000, 50_000, 2_000, 128)


def measure_resume(plan: Plan, scratch: Path) -> dict[str, float]:
    where = scratch / "resume"
    written = plan.measured.fresh("write_run", where, plan.finished, 0)
    rounds = [plan.measured.fresh("resume", where, plan.finished, 0) for _ in range(plan.processes)]
    read = max(found["read_bytes"] for found in rounds)
    a_rollout = max(0.0, read - MIB) / plan.finished
    print(
        f"resuming {plan.finished} finished rollouts ({written['main_bytes'] / MIB:.0f} MiB of records, "
        f"{written['materialised_bytes'] / MIB:.0f} MiB of rows): {read / MIB:.2f} MiB read, "
        f"{read / plan.finished:.1f} bytes a rollout, {a_rollout:.1f} beyond 1 MiB; "
        f"{middle(rounds, 'resume_s'):.2f} s; reading everything instead {middle(rounds, 'whole_s'):.2f} s"
    )
    return {"resume_bytes_per_rollout": a_rollout}


def measure_rows(plan: Plan, scratch: Path) -> dict[str, float]:
    held = {}
    for rows in (plan.few_rows, plan.many_rows):
        where = scratch / f"rows-{rows}"
        plan.measured.fresh("write_rows", where, rows, 0)
        rounds = [plan.measured.fresh("hold_rows", where, rows, 0) for _ in range(plan.processes)]
        held[rows] = middle(rounds, "rss_bytes")
    few, many = held[plan.few_rows], held[plan.many_rows]
    print(f"driver with {plan.few_rows} rows: {few / MIB:.1f} MiB; with {plan.many_rows}: {many / MIB:.1f} MiB")
    return {"driver_bytes_per_row": (many - few) / (plan.many_rows - plan.few_rows)}


def measure_growth(plan: Plan, scratch: Path) -> dict[str, float]:
    rounds = plan.measured.several("finish", scratch, plan.rollouts, plan.rollouts // 10)
    growth = [(found["rss_late"] - found["rss_early"]) / MIB for found in rounds]
    print(
        f"driver from {plan.rollouts // 10} to {plan.rollouts} finished rollouts: {max(growth):.2f} MiB more; "
        f"{middle(rounds, 'rollouts_per_s'):.0f} rollouts/s"
    )
    return {"driver_growth_mib_1000_to_10000": max(growth)}


def measure_stalls(plan: Plan, scratch: Path) -> dict[str, float]:
    figures = {}
    for place in ("driver", "server"):
        rounds = plan.measured.several(f"{place}_stall", scratch, plan.at_once, plan.at_once)
        beyond = [max(0.0, found["loaded_ms"] - found["idle_ms"]) for found in rounds]
        figures[f"{place}_stall_ms_512"] = statistics.median(beyond)
        print(
            f"{plan.at_once} end at once, {place}: longest stall {middle(rounds, 'loaded_ms'):.1f} ms, of an idle loop "
            f"{middle(rounds, 'idle_ms'):.1f} ms; beyond it {min(beyond):.1f} to {max(beyond):.1f}"
        )
    return figures


def run(quick: bool, scratch: Path) -> dict[str, float]:
    plan, figures = QUICK if quick else Plan(), {}
    for measure in (measure_resume, measure_rows, measure_growth, measure_stalls):
        figures |= measure(plan, scratch)
    return figures


if __name__ == "__main__":
    main(__file__, "benchmarks.run_log_probes", __doc__, WANTED, run)
