"""A trainer's process that is killed and started again: the loop goes on with the next step, and mixes nothing."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gym_ray.testing.fake_upstream import FakeUpstream
from gym_ray.testing.fake_vllm import END, FakeVllm, spelled

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
HERE = Path(__file__).parent
SETTINGS = f"""
model_endpoint_timeout_s: 0
model_call_capture_dir: DIRECTORY/model-calls
observability_enabled: true
num_rollout_workers: 1
policy_model:
  responses_api_models:
    vllm_model: {{base_url: "UPSTREAM/v1", model: served, dialects: [chat], scale_out: true}}
trained:
  responses_api_agents:
    callable_agent: {{callable: "{HERE / "agents" / "steered_agent.py"}:agent", token_id_capture: true}}
token_id_capture: {{enabled: true, dir: DIRECTORY/tokens}}
"""


def row(text: str, **more: Any) -> dict[str, Any]:
    return {"agent_ref": {"name": "trained"}, "responses_create_params": {"input": text}, "calls": True, **more}


@contextmanager
def loop(where: str, settings: Path, steps: Path, *rows: dict[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
    """Run the program for the block, give the lines that it says, and kill it."""
    command = [sys.executable, str(HERE / "programs" / "killed_loop.py"), where, str(settings), str(steps)]
    with subprocess.Popen([*command, json.dumps(rows)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield (json.loads(line) for line in process.stdout if line.startswith("{"))
        finally:
            process.kill()


def test_a_killed_trainer_goes_on_with_the_next_step(
    ray_cluster: None, tmp_path: Path, serve: Callable[[Any], str]
) -> None:
    import ray

    answers = ([*spelled(f"answer {number}"), END] for number in itertools.count())
    url = serve(FakeUpstream(FakeVllm(answers).script))  # type: ignore[arg-type]
    settings, steps, gate = tmp_path / "settings.yaml", tmp_path / "steps", tmp_path / "gate"
    settings.write_text(SETTINGS.replace("UPSTREAM", url).replace("DIRECTORY", str(tmp_path)))
    address = ray.get_runtime_context().gcs_address

    with loop(address, settings, steps, row("a"), row("b")) as said:  # killed between two batches
        assert next(said) == {"interrupted": [], "last": None}
        first = [next(said), next(said)]
        assert next(said) == {"over": True}
    with loop(f"init:{address}", settings, steps, row("a"), row("b", gate=str(gate))) as said:  # in the middle of one
        assert next(said) == {"interrupted": [], "last": 0}
        second = [next(said)]
    gate.touch()
    with loop("own", settings, steps, row("a"), row("b")) as said:
        assert next(said) == {"interrupted": [2], "last": 1}
        third = [next(said), next(said)]
        assert next(said) == {"over": True}
        assert next(said) == {"ray": False}, "the Ray that it began itself has ended"

    results = [*first, *second, *third]
    assert [item["versions"] for item in results] == [[0], [0], [1], [2], [2]]
    assert all(item["reward"] == 1.0 and not item["reasons"] and len(item["calls"]) == 1 for item in results)
    assert len({item["id"] for item in results}) == len({item["calls"][0] for item in results}) == 5
    states = [json.loads((steps / f"step-00000{n}.run" / "step.json").read_text())["state"] for n in (1, 2, 3)]
    assert states == ["complete", "interrupted", "complete"]
    kept = [json.loads(line) for line in (steps / "step-000002.jsonl").read_text().splitlines()]
    assert [item["ng_rollout_id"] if "ng_rollout_id" in item else second[0]["id"] for item in kept] == [second[0]["id"]]
    captures = {path.name.removesuffix(".capture.jsonl") for path in (tmp_path / "model-calls").glob("*.capture.jsonl")}
    assert captures >= {item["id"] for item in results}, "what an earlier loop captured stays"
