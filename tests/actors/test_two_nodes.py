"""A collection over two Ray nodes, with model servers on both and one capture directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gym_ray.testing.numbered_upstream import numbered_upstream
from gym_ray.testing.serving import served

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
HERE = Path(__file__).parent
ROWS = 16

SETTINGS = f"""
policy_model:
  responses_api_models:
    openai_model:
      openai_base_url: UPSTREAM/v1
      openai_api_key: k
      openai_model: numbered
      replicas: per_node
diary_agent:
  responses_api_agents:
    callable_agent:
      callable: {HERE / "agents" / "diary_agent.py"}:agent
"""


def test_two_nodes_share_one_capture_directory(tmp_path: Path, ray_environment: None) -> None:
    diary, captures = tmp_path / "diary.jsonl", tmp_path / "model-calls"
    row = {"agent_ref": {"name": "diary_agent"}, "diary": str(diary)}
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps(row | {"responses_create_params": {"input": f"row {n}"}}) + "\n" for n in range(ROWS))
    )
    with served(numbered_upstream(0.05)) as url:
        (tmp_path / "settings.yaml").write_text(SETTINGS.replace("UPSTREAM", url))
        done = subprocess.run(
            [
                *(sys.executable, HERE / "two_nodes.py", "--", sys.executable, "-m", "gym_ray", "eval", "run"),
                *("--config", "settings.yaml", "--input", "rows.jsonl", "--output", "records.jsonl"),
                *("++observability_enabled=true", f"++model_call_capture_dir={captures}", "++num_rollout_workers=2"),
            ],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(HERE.parents[1]), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=360,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert len(records) == ROWS
    for record in records:
        capture = record["ng_model_call_capture"]
        assert "gaps" not in capture
        assert [call["response_id"] for call in capture["calls"]] == record["answers"]
    entries = [json.loads(line) for line in diary.read_text().splitlines()]
    assert len({entry["server"] for entry in entries if entry["what"] == "answer"}) == 2, "both servers were used"
    assert len({entry["pid"] for entry in entries if entry["what"] == "began"}) == 2, "both workers ran rollouts"
