"""What a join costs: a rollout of ten calls, one whose history grows over fifty, and the bytes of its compact record.

Joining is parsing the capture, joining observations, projecting, summing up and writing the record as JSON. It is
measured against the least that any join must do with the same lines: parse them, write them, and validate each call
once as a model with opaque payloads. Both are measured in turns in fresh processes, in processor time. The whole of
``join``, with the verdict of health checks and the facts for metrics, is printed beside it.

    .venv/bin/python benchmarks/join.py            the whole run, half a minute on an idle machine
    .venv/bin/python benchmarks/join.py --quick    fewer rounds, for a look
"""

from __future__ import annotations

from pathlib import Path

from measuring import AT_MOST, Processes, main, middle, ratio

WANTED = {
    "join_over_orjson": (AT_MOST, 2.0),
    "growing_over_loads": (AT_MOST, 4.0),
    "growing_bytes_ratio": (AT_MOST, 1.2),
}
CALLS, GROWING_CALLS = 10, 50


def measure_ten(processes: Processes, scratch: Path, rounds: int) -> dict[str, float]:
    found = processes.several("ten", scratch, CALLS, rounds)
    over, spread = ratio(found, "join_s", "least_s")
    whole, whole_spread = ratio(found, "whole_s", "least_s")
    micros = {name: middle(found, f"{name}_s") * 1e6 for name in ("loads", "dumps", "validate", "least", "join")}
    print(
        f"{CALLS} calls, {found[0]['capture_bytes']:.0f} bytes of capture, {found[0]['record_bytes']:.0f} of record: "
        f"join {micros['join']:.0f} us; loads {micros['loads']:.0f}, dumps {micros['dumps']:.0f}, "
        f"validate {micros['validate']:.0f}, together {micros['least']:.0f}; {spread}"
    )
    print(f"with verdict and facts {middle(found, 'whole_s') * 1e6:.0f} us; {whole_spread}")
    return {"join_over_orjson": over, "join_whole_over_orjson": whole}


def measure_growing(processes: Processes, scratch: Path, rounds: int) -> dict[str, float]:
    found = processes.several("growing", scratch, GROWING_CALLS, rounds)
    over, spread = ratio(found, "join_s", "loads_s")
    whole, whole_spread = ratio(found, "whole_s", "loads_s")
    print(
        f"{GROWING_CALLS} growing calls, {found[0]['capture_bytes'] / 1e6:.1f} MB of capture, "
        f"{found[0]['record_bytes'] / 1e6:.1f} of record: join {middle(found, 'join_s') * 1e3:.1f} ms, "
        f"loads {middle(found, 'loads_s') * 1e3:.1f}; {spread}"
    )
    print(f"with verdict and facts {middle(found, 'whole_s') * 1e3:.1f} ms; {whole_spread}")
    return {"growing_over_loads": over, "growing_whole_over_loads": whole}


def measure_bytes(processes: Processes, scratch: Path) -> dict[str, float]:
    found = processes.fresh("bytes", scratch, GROWING_CALLS, 1)
    stored = found["compact_bytes"] + found["parts_bytes"]
    print(
        f"compact: {found['compact_bytes']:.0f} bytes of record and {found['parts_bytes']:.0f} of parts, "
        f"{found['distinct_bytes']:.0f} of distinct content; inline {found['inline_bytes']:.0f}"
    )
    return {"growing_bytes_ratio": stored / found["distinct_bytes"]}


def run(quick: bool, scratch: Path) -> dict[str, float]:
    processes, rounds = Processes(Path(__file__), 1 if quick else 5), 100 if quick else 400
    return (
        measure_ten(processes, scratch, rounds)
        | measure_growing(processes, scratch, max(5, rounds // 20))
        | measure_bytes(processes, scratch)
    )


if __name__ == "__main__":
    main(__file__, "benchmarks.join_probes", __doc__, WANTED, run)
