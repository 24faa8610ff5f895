"""A training loop around a rollout collector: groups in, advantages out, one line of a table for each step.

    python examples/training_loop/train.py --steps 3 --output results/loop

It runs the embedded model on this machine. Its weights do not change here: where a trainer updates and publishes them,
``learn`` only counts what it would have learned from. Everything else is what a trainer needs: the weight version that
each token was sampled with, exactly one result for each rollout asked for, tokens as read-only views of Ray's object
store, and advantages within each group. A group of which too little came back gives nothing, and the table says so.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_ray.actors import RolloutCollector
from gym_ray.rollouts.training.results import RolloutGroup
from gym_ray.settings import RunSettings, load_settings, server_config_paths
from gym_ray.token_id_capture.token_table import token_arrays

ROWS = Path(__file__).parents[1] / "order_desk" / "tasks.jsonl"
COLUMNS = ("step", "weights", "groups", "usable", "lost", "reward", "tokens", "log prob", "advantage", "seconds")


@dataclass(frozen=True)
class Sample:
    """One chain to learn from: n tokens, which of them count, with what log probability they were sampled."""

    rollout_id: str
    token_ids: NDArray[np.uint32]
    loss_mask: NDArray[np.uint8]
    log_probs: NDArray[np.float32]
    advantage: float


def advantages(rewards: Sequence[float]) -> list[float]:
    """Return how far each reward is from the mean of its group, in standard deviations; zeros when all are alike."""
    values = np.asarray(rewards, np.float64)
    spread = values.std()
    return [0.0] * len(rewards) if spread == 0.0 else ((values - values.mean()) / spread).tolist()


def samples_of(group: RolloutGroup) -> Iterator[Sample]:
    """Yield the chains of a group's rollouts; none where fewer than two can be compared."""
    scored = [result for result in group.usable if result.reward is not None and result.tokens is not None]
    if len(scored) < 2:
        return
    for result, advantage in zip(scored, advantages([result.reward for result in scored]), strict=True):
        for row in range(result.tokens.num_rows):
            if not result.tokens.column("masked")[row].as_py():
                yield Sample(result.rollout_id, *token_arrays(result.tokens, row), advantage)


def learn(samples: Sequence[Sample]) -> tuple[int, float]:
    """Stand where an optimiser stands; return how many tokens carry loss and their mean log probability."""
    counted = [sample.log_probs[sample.loss_mask.astype(bool)] for sample in samples]
    together = np.concatenate(counted) if counted else np.zeros(0, np.float32)
    return together.size, float(together.mean()) if together.size else float("nan")


def settings_for(output: Path, repeats: int) -> RunSettings:
    """Return the settings of an order desk with the embedded model, tokens captured."""
    return load_settings(
        server_config_paths(resources_servers=["order_desk"], model_type="local_model", configs=[]),
        [
            *("++agent_name=order_desk_simple_agent", f"++num_repeats={repeats}", "++num_repeats_add_seed=true"),
            *("++responses_create_params.temperature=1.0", "++num_rollout_workers=1"),
            *("++token_id_capture.enabled=true", "++token_id_capture.all_agents=true"),
            f"++token_id_capture.dir={output / 'tokens'}",
        ],
        environ={},
    )


def step(collector: RolloutCollector, number: int, rows: Sequence[dict[str, Any]], timeout_s: float) -> list[str]:
    """Collect, compare, learn; return the line of the table."""
    begun = time.monotonic()
    collector.set_weight_version(number)
    groups = list(collector.collect(rows, groups=True, timeout_s=timeout_s))
    samples = [sample for group in groups for sample in samples_of(group)]
    tokens, log_prob = learn(samples)
    results = [result for group in groups for result in group.results]
    rewards = [result.reward for result in results if result.reward is not None]
    largest = max((abs(sample.advantage) for sample in samples), default=0.0)
    lost = sum(result.masked for result in results)
    for reason in sorted({reason for result in results for reason in result.reasons}):
        print(f"  step {number}: masked for {reason}")
    reward = f"{np.mean(rewards):.3f}" if rewards else "none"
    figures = (f"{log_prob:.3f}", f"{largest:.2f}", f"{time.monotonic() - begun:.1f}")
    return [*map(str, (number, number, len(groups), len(results) - lost, lost)), reward, str(tokens), *figures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=2, help="rows of each step")
    parser.add_argument("--repeats", type=int, default=4, help="rollouts of a group")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that a step may take")
    parser.add_argument("--output", type=Path, default=Path("results/loop"))
    args = parser.parse_args()
    output = args.output.absolute()
    rows = [json.loads(line) for line in ROWS.read_text("utf-8").splitlines()[: args.tasks]]
    print("".join(f"{name:>11}" for name in COLUMNS))
    with RolloutCollector.start(
        settings_for(output, args.repeats), output_dir=output / "steps", max_staleness=0
    ) as collector:
        for number in range(1, args.steps + 1):
            line = step(collector, number, rows, args.timeout)
            print("".join(f"{cell:>11}" for cell in line), flush=True)


if __name__ == "__main__":
    main()
