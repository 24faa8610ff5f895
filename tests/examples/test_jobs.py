"""The document of two benchmarks: what it plans, and once for real, on a cluster with a job server."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from gym_ray.settings import load_settings, server_config_paths
from gym_ray.submission.documents import check_submittable, read_submission
from gym_ray.submission.planning import plan_submit
from gym_ray.testing.job_head import job_head

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "examples" / "jobs" / "two_benchmarks.yaml"


def test_it_plans_two_runs_with_settings_that_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # the rows are named from the working directory of the job
    submission = read_submission(DOCUMENT, [f"++_jobs={tmp_path}", "++_rows=3"])
    check_submittable(submission)
    plan = plan_submit(submission, tmp_path / "job")
    assert [benchmark.name for benchmark in plan.benchmarks] == ["mcqa", "order_desk"]
    for benchmark in plan.benchmarks:
        words = list(benchmark.arguments)
        config, model = words[words.index("--config") + 1], words[words.index("--model-type") + 1]
        paths = server_config_paths(configs=[config], model_type=model)
        settings = load_settings(paths, [word for word in words if word.startswith("+")], environ={})
        assert settings.limit == 3
        assert settings.capture_dir == tmp_path / "job" / benchmark.name / "model-calls"
        assert settings.agent_name in settings.servers
        assert settings.input_jsonl_fpath is not None
        assert Path(settings.input_jsonl_fpath).is_file()


@pytest.mark.ray
@pytest.mark.model
@pytest.mark.timeout(500)
def test_two_benchmarks_run_as_jobs(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    command = ["-m", "gym_ray", "eval", "submit", DOCUMENT, f"++_jobs={tmp_path / 'jobs'}", "++_rows=1", "--wait"]
    with job_head(tmp_path, token) as head:
        done = subprocess.run(
            [sys.executable, *command, "--address", head.url],
            env=head.environ() | {"COLUMNS": "200"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=450,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = (tmp_path / "jobs").iterdir()
    for name in ("mcqa", "order_desk"):
        (record,) = (job / name / "artifacts" / "rollouts.jsonl").read_text().splitlines()
        assert json.loads(record)["ng_model_call_capture"]["calls"]
        assert os.listdir(job / name / "model-calls")
        assert json.loads((job / name / "status.json").read_text())["state"] == "complete"
