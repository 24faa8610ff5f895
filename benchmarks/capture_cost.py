"""What capture costs a model server: the same app with capture off, on, and with a bare batcher, in one run.

The bare batcher is the least that durability costs here: it batches, writes and syncs the same number of bytes to the
same number of files in parallel, and does nothing else: no parsing, no record, no locks, no open log, no index.

    .venv/bin/python benchmarks/capture_cost.py            the whole run, about three minutes
    .venv/bin/python benchmarks/capture_cost.py --quick    short and noisy, for a look
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

HERE = Path(__file__).parent
VARIANTS = ("off", "on", "bare")
ROLLOUTS = 256
RSS_ROLLOUTS = 4096
RSS_FROM, RSS_TO = 5_000, 50_000
REQUEST_BYTES, RESPONSE_BYTES = 7 * 1024, 1024
RESULTS = HERE / "results"
IN_MEMORY = ("tmpfs", "ramfs")


def request_body() -> bytes:
    """A chat request of 7 KiB: many short messages, as an agent's history is."""
    messages: list[dict[str, str]] = []
    body = {"model": "bench", "temperature": 0.7, "messages": messages}
    while len(json.dumps(body)) < REQUEST_BYTES - 200:
        role = "user" if len(messages) % 2 == 0 else "assistant"
        messages.append({"role": role, "content": f"Turn {len(messages)}: " + "what do you see, and what next? " * 4})
    messages.append({"role": "user", "content": ""})
    messages[-1]["content"] = "x" * (REQUEST_BYTES - len(json.dumps(body)))
    return json.dumps(body).encode()


@dataclass
class Round:
    """What one load on one server gave."""

    requests: int
    duration_us: int
    p50_us: int
    p99_us: int
    errors: int
    cpu_us: float = 0.0

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.duration_us * 1e6


@dataclass
class Server:
    """A server process of one variant."""

    port: int
    process: subprocess.Popen[str]
    counts: dict[str, int] = field(default_factory=dict)
    """What a capturing server counted; there when it has ended."""

    def rss_mib(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024


def cpu_us(process_id: int) -> float:
    """Processor time a process has used, user and system, all threads."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1e6


def check_disk(directory: Path, mounts: str) -> None:
    """Refuse a directory in memory: a sync costs nothing there, and every figure would be wrong.

    Args:
        directory: Where capture files are to go.
        mounts: What ``/proc/self/mountinfo`` says.
    """
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        fields = line.split()
        kind = fields[fields.index("-") + 1]
        if fields[2] == number and kind in IN_MEMORY:
            raise SystemExit(f"{directory} is a {kind}, where fdatasync is free; choose a disk with --directory")


@contextmanager
def serve(variant: str, directory: Path) -> Iterator[Server]:
    command = [sys.executable, str(HERE / "capture_cost_server.py"), variant, str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("PORT "):
            raise SystemExit(f"the {variant} server did not start; its own message is above")
        server = Server(int(line.split()[1]), process)
        yield server
    finally:
        process.terminate()
        try:
            said, _ = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise SystemExit(f"the {variant} server did not stop within 30 s") from None
    for line in said.splitlines():
        if line.startswith("COUNTS "):
            server.counts = json.loads(line.removeprefix("COUNTS "))


def answer(server: Server, body: bytes) -> bytes:
    """Return the body of the answer that every variant gives."""
    url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        content: bytes = response.read()
    return content


def load(server: Server, body: Path, *, connections: int, seconds: int, rollouts: int = ROLLOUTS) -> Round:
    environment = os.environ | {"BENCH_BODY": str(body), "BENCH_ROLLOUTS": str(rollouts)}
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s"]
    command += ["-s", str(HERE / "capture_cost.lua"), f"http://127.0.0.1:{server.port}"]
    before_us = cpu_us(server.process.pid)
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    used_us = cpu_us(server.process.pid) - before_us
    (line,) = (line for line in output.splitlines() if line.startswith("RESULT "))
    result = Round(**json.loads(line.removeprefix("RESULT ")), cpu_us=used_us)
    if result.errors:
        raise SystemExit(f"{result.errors} requests failed; the figures would be worthless")
    return result


@dataclass
class SyncCost:
    """What one write and fdatasync of one record costs here, one at a time."""

    wall_us: float
    cpu_us: float


def measure_sync(directory: Path, line_bytes: int, samples: int) -> SyncCost:
    """Measure the machine's own median time, and mean processor time, over as many files as there are rollouts."""
    data, times = b"x" * (line_bytes - 1) + b"\n", []
    files = [os.open(directory / f"sync-{i}", os.O_CREAT | os.O_APPEND | os.O_WRONLY) for i in range(ROLLOUTS)]
    cpu_begun = time.process_time()
    try:
        for i in range(samples):
            begun = time.perf_counter()
            os.write(files[i % ROLLOUTS], data)
            os.fdatasync(files[i % ROLLOUTS])
            times.append(time.perf_counter() - begun)
        cpu_s = time.process_time() - cpu_begun
    finally:
        for fd in files:
            os.close(fd)
    return SyncCost(statistics.median(times[samples // 5 :]) * 1e6, cpu_s / samples * 1e6)


def orjson_cpu_us(bodies: list[bytes], samples: int = 1000) -> float:
    """Processor time of orjson to load and dump these bodies once: what no JSON record can be made without."""
    begun = time.process_time()
    for _ in range(samples):
        for body in bodies:
            orjson.dumps(orjson.loads(body))
    return (time.process_time() - begun) / samples * 1e6


@dataclass
class Samples:
    """Everything that was measured, by variant and number of connections."""

    rounds: dict[tuple[str, int], list[Round]] = field(default_factory=dict)
    syncs: list[SyncCost] = field(default_factory=list)
    orjson_us: list[float] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def rates(self, variant: str, connections: int) -> list[float]:
        """Requests a second, by round."""
        return [result.rate for result in self.rounds[variant, connections]]

    def p50s_us(self, variant: str, connections: int) -> list[float]:
        """Median latencies, by round."""
        return [float(result.p50_us) for result in self.rounds[variant, connections]]


def cpu_us_a_request(rounds: list[Round]) -> float:
    """Processor time of the server for one request: what other work on the machine disturbs least."""
    return statistics.median(result.cpu_us / result.requests for result in rounds)


def measure_speed(scratch: Path, body: Path, repeats: int, seconds: int) -> Samples:
    """Loads the three servers in short turns, so that the machine's moods meet all of them alike."""
    samples, line_bytes = Samples(), REQUEST_BYTES + RESPONSE_BYTES + 400
    with ExitStack() as stack:
        servers = {}
        for variant in VARIANTS:
            (scratch / variant).mkdir()
            servers[variant] = stack.enter_context(serve(variant, scratch / variant))
            load(servers[variant], body, connections=64, seconds=1)  # warm: files exist, code is hot
        bodies = [body.read_bytes(), answer(servers["off"], body.read_bytes())]
        for repeat in range(repeats):
            for connections in (64, 1):
                for variant in VARIANTS if repeat % 2 == 0 else reversed(VARIANTS):
                    result = load(servers[variant], body, connections=connections, seconds=seconds)
                    samples.rounds.setdefault((variant, connections), []).append(result)
            samples.syncs.append(measure_sync(scratch, line_bytes, 500))
            samples.orjson_us.append(orjson_cpu_us(bodies))
    samples.counts = servers["on"].counts
    for variant in VARIANTS:
        shutil.rmtree(scratch / variant)
    return samples


def measure_rss(scratch: Path, body: Path) -> dict[str, float]:
    """Memory of the capturing server at its 5,000th and its 50,000th call, over 4,096 rollouts."""
    directory = scratch / "rss"
    directory.mkdir()
    with serve("on", directory) as server:
        done, at = 0, {}
        for target in (RSS_FROM, RSS_TO):
            while done < target:
                left = target - done
                done += load(
                    server, body, connections=64, seconds=2 if left > 4000 else 1, rollouts=RSS_ROLLOUTS
                ).requests
            at[target] = server.rss_mib()
    shutil.rmtree(directory)
    return {"rss_first_mib": at[RSS_FROM], "rss_last_mib": at[RSS_TO], "rss_calls": float(done)}


def figures_of(samples: Samples, rss: dict[str, float]) -> dict[str, float]:
    def ratio(above: str, below: str) -> float:
        pairs = zip(samples.rates(above, 64), samples.rates(below, 64), strict=True)
        return statistics.median(a / b for a, b in pairs)

    sync_ms = statistics.median(sync.wall_us for sync in samples.syncs) / 1000
    added = zip(samples.p50s_us("on", 1), samples.p50s_us("off", 1), strict=True)
    added_ms = statistics.median(on - off for on, off in added) / 1000
    orjson_us = statistics.median(samples.orjson_us)
    cpu_us_64 = {variant: cpu_us_a_request(samples.rounds[variant, 64]) for variant in VARIANTS}
    added_us = cpu_us_64["on"] - cpu_us_64["off"]
    figures = {
        "capture_on_over_bare_batcher_64": ratio("on", "bare"),
        "capture_on_over_off_64": ratio("on", "off"),
        "added_p50_over_fdatasync_p50_1": added_ms / sync_ms,
        "added_p50_ms_1": added_ms,
        "fdatasync_p50_ms": sync_ms,
        "added_p50_allowed_ms_1": 1.5 * sync_ms + 0.5,
        "fsyncs_per_distinct_file_and_batch": samples.counts["data_syncs"] / samples.counts["appends"],
        "added_cpu_over_orjson": added_us / orjson_us,
        "bare_added_cpu_over_orjson": (cpu_us_64["bare"] - cpu_us_64["off"]) / orjson_us,
        "added_cpu_us_64": added_us,
        "orjson_cpu_us": orjson_us,
        "write_and_fdatasync_cpu_us": statistics.median(sync.cpu_us for sync in samples.syncs),
        "server_rss_growth_mib_50k": rss["rss_last_mib"] - rss["rss_first_mib"],
    }
    for variant in VARIANTS:
        for connections in (64, 1):
            figures[f"{variant}_requests_per_s_{connections}"] = statistics.median(samples.rates(variant, connections))
            figures[f"{variant}_p50_ms_{connections}"] = statistics.median(samples.p50s_us(variant, connections)) / 1000
            figures[f"{variant}_cpu_us_{connections}"] = cpu_us_a_request(samples.rounds[variant, connections])
    counts = {f"counted_{name}": float(count) for name, count in samples.counts.items()}
    return {name: round(value, 4) for name, value in (figures | counts | rss).items()}


def show(figures: dict[str, float], samples: Samples) -> None:
    print(f"{'variant':<8}{'conns':>6}{'req/s (median)':>16}{'p50 ms':>9}{'cpu us':>8}   every round, req/s")
    for (variant, connections), rounds in sorted(samples.rounds.items()):
        rate = figures[f"{variant}_requests_per_s_{connections}"]
        p50 = figures[f"{variant}_p50_ms_{connections}"]
        cpu = figures[f"{variant}_cpu_us_{connections}"]
        every = " ".join(f"{result.rate:.0f}" for result in rounds)
        print(f"{variant:<8}{connections:>6}{rate:>16.0f}{p50:>9.3f}{cpu:>8.0f}   {every}")
    syncs = " ".join(f"{sync.wall_us / 1000:.3f}" for sync in samples.syncs)
    print(f"write+fdatasync of one record, one at a time: p50 {figures['fdatasync_p50_ms']:.3f} ms ({syncs})")
    print(
        f"added p50 at 1 connection: {figures['added_p50_ms_1']:.3f} ms; allowed 1.5 x "
        f"{figures['fdatasync_p50_ms']:.3f} + 0.5 = {figures['added_p50_allowed_ms_1']:.3f} ms"
    )
    print(f"capture on / bare batcher at 64: {figures['capture_on_over_bare_batcher_64']:.3f} (wanted: 0.7 or more)")
    print(f"capture on / off at 64: {figures['capture_on_over_off_64']:.3f}")
    print(
        f"syncs of file data: {figures['counted_data_syncs']:.0f} in {figures['counted_appends']:.0f} appends "
        f"(distinct files x batches, {figures['counted_records']:.0f} records): "
        f"{figures['fsyncs_per_distinct_file_and_batch']:.3f} (wanted: 1 or less); of the directory, for {ROLLOUTS} "
        f"new files: {figures['counted_directory_syncs']:.0f}"
    )
    print(
        f"added processor time at 64: {figures['added_cpu_us_64']:.0f} us a call (on - off, user + system), orjson "
        f"loading and dumping the same bodies {figures['orjson_cpu_us']:.1f} us: "
        f"{figures['added_cpu_over_orjson']:.1f} times (wanted: 8 or less); the bare batcher "
        f"{figures['bare_added_cpu_over_orjson']:.1f} times; one write and fdatasync alone "
        f"{figures['write_and_fdatasync_cpu_us']:.0f} us"
    )
    print(
        f"server memory: {figures['rss_first_mib']:.1f} MiB at call {RSS_FROM}, {figures['rss_last_mib']:.1f} at "
        f"{figures['rss_calls']:.0f}, over {RSS_ROLLOUTS} rollouts: + {figures['server_rss_growth_mib_50k']:.1f} MiB "
        "(wanted: 16 or less)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds instead of fifteen, for a look")
    parser.add_argument("--directory", type=Path, default=RESULTS, help="its disk is measured; default: %(default)s")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed; on Debian: apt-get install wrk")
    options.directory.mkdir(parents=True, exist_ok=True)
    check_disk(options.directory, Path("/proc/self/mountinfo").read_text())
    repeats, seconds = (2, 1) if options.quick else (15, 1)
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch_name:
        scratch = Path(scratch_name)
        body = scratch / "body.json"
        body.write_bytes(request_body())
        samples = measure_speed(scratch, body, repeats, seconds)
        rss = measure_rss(scratch, body)
    figures = figures_of(samples, rss)
    show(figures, samples)
    write_results(RESULTS / "capture_cost.json", figures, repeats, seconds)


def write_results(target: Path, figures: dict[str, float], repeats: int, seconds: int) -> None:
    setup: dict[str, Any] = {
        "request_bytes": REQUEST_BYTES,
        "response_bytes": RESPONSE_BYTES,
        "rollouts": ROLLOUTS,
        "repeats": repeats,
        "seconds_a_round": seconds,
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
    }
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({"name": "capture_cost", "figures": figures, "setup": setup}, indent=2) + "\n")
    print(f"written: {target}")


if __name__ == "__main__":
    main()
