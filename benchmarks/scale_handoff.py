"""How tokens reach a training loop: bytes of columns that lie outside the object store's mapping."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from gym_ray.cli.runtime import ray_session
from gym_ray.settings import load_settings
from gym_ray.testing.fake_upstream import FakeUpstream
from gym_ray.testing.fake_vllm import END, FakeVllm, spelled
from gym_ray.testing.serving import served

__all__ = ["buffers_of", "handoff", "outside"]

_VERDICTS = ("reward", "masked", "reasons")
"""What the loop's side decides when it takes a row, some 20 bytes each; it never lay in the store."""
_ROOT = Path(__file__).parents[1]
_SETTINGS = """
model_endpoint_timeout_s: 0
num_rollout_workers: 1
policy_model:
  responses_api_models:
    vllm_model: {base_url: "UPSTREAM/v1", model: served, dialects: [chat], scale_out: true}
trained:
  responses_api_agents:
    callable_agent: {callable: "AGENTS:trained", token_id_capture: true}
token_id_capture: {enabled: true, dir: TOKENS}
"""


def store_mappings() -> list[tuple[int, int]]:
    """Return the address ranges of this process that are the object store's."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    bounds = [re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line) for line in lines if "plasma" in line]
    return [(int(found[1], 16), int(found[2], 16)) for found in bounds if found]


def buffers_of(table: pa.Table) -> Iterator[tuple[int, int]]:
    """Yield address and size of every buffer of a table's columns, but for the loop's own verdicts on each row."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        for chunk in column.chunks:
            for buffer in () if name in _VERDICTS else chunk.buffers():
                if buffer is not None and buffer.size:
                    yield buffer.address, buffer.size


def outside(buffers: Iterator[tuple[int, int]], mappings: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the bytes of all buffers, and of those that do not lie wholly in a mapping."""
    total = out = 0
    for address, size in buffers:
        total += size
        if not any(start <= address and address + size <= end for start, end in mappings):
            out += size
    return total, out


def handoff(directory: Path, rollouts: int, tokens: int) -> dict[str, float]:
    """Collect a batch of rollouts of so many tokens as a training loop does, and look where its tokens lie."""
    directory.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = str(_ROOT)
    answers = [[*spelled("x" * (tokens - 1)), END] for _ in range(rollouts)]
    rows = [
        {"agent_ref": {"name": "trained"}, "responses_create_params": {"input": f"row {n}"}} for n in range(rollouts)
    ]
    (directory / "env.yaml").write_text("{}\n")
    with (
        served(FakeUpstream(FakeVllm(answers).script)) as url,
        ray_session(f"gym-ray/{secrets.token_hex(4)}", num_cpus=2),
    ):
        from gym_ray.actors import RolloutCollector

        said = _SETTINGS.replace("UPSTREAM", url).replace("TOKENS", str(directory / "tokens"))
        said = said.replace("AGENTS", str(_ROOT / "benchmarks" / "scale_agents.py"))
        (directory / "settings.yaml").write_text(said)
        settings = load_settings([directory / "settings.yaml"], (), env_file=directory / "env.yaml", environ={})
        with RolloutCollector.start(settings, output_dir=directory / "steps", cache_dir=directory) as loop:
            batch = loop.collect_batch(rows)
            table = batch.tokens
            sampled = sum(sum(mask) for mask in table.column("loss_mask").to_pylist())
            if len(batch.usable) != rollouts or sampled != rollouts * tokens:
                raise RuntimeError(
                    f"{len(batch.usable)} of {rollouts} rollouts are usable, with {sampled} sampled tokens"
                )
            total, out = outside(buffers_of(table), store_mappings())
    return {"bytes": total, "outside": out, "tokens": sampled}
