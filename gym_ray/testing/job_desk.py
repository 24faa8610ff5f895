"""Submits evaluations as a user does: writes documents, runs the commands, reads what they print."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer import Typer
from typer.testing import CliRunner

from gym_ray.errors import GymRayError
from gym_ray.testing.job_head import JobHead

__all__ = ["Desk"]


class Desk:
    """Somebody with a shell, a shared directory and a cluster.

    Args:
        directory: The shared directory.
        head: The cluster.
        agent: A file with a callable ``agent``, which runs the rows.
        command: The ``gym-ray`` command, for what is run in this process.

    Attributes:
        output: Where jobs are kept.
        secret: The key of the model.
    """

    def __init__(self, directory: Path, head: JobHead, agent: Path, command: Typer) -> None:
        self.directory, self.head, self.output = directory, head, directory / "jobs"
        self._command = command
        self._started: list[subprocess.Popen[str]] = []
        self.secret = "sk-" + secrets.token_hex(16)
        self._environ = {"RAY_API_SERVER_ADDRESS": head.url, "TEST_KEY": self.secret, "COLUMNS": "300"}
        settings = {"asking_agent": {"responses_api_agents": {"callable_agent": {"callable": f"{agent}:agent"}}}}
        (directory / "agent.yaml").write_text(json.dumps(settings))

    def rows(self, count: int) -> str:
        """Write rows, and return their path."""
        path = self.directory / f"rows-{count}.jsonl"
        row = {"agent_ref": {"name": "asking_agent"}}
        lines = [row | {"responses_create_params": {"input": f"row {n}"}} for n in range(count)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)

    def run(self, rows: int, **settings: Any) -> dict[str, Any]:
        """Return a benchmark that runs rows."""
        configs = [str(self.directory / "agent.yaml")]
        return {"run": {"config_paths": configs, "input_jsonl_fpath": self.rows(rows)} | settings}

    def document(self, benchmarks: dict[str, Any], upstream: str = "http://127.0.0.1:9", **compute: Any) -> str:
        """Write a submit document, and return its path."""
        service = {"type": "external", "base_url": f"{upstream}/v1", "model": "numbered", "api_key": "host:TEST_KEY"}
        whole = {
            "services": {"policy": service},
            "compute": {"here": {"type": "ray"} | compute},
            "driver": {"policy_model": "policy", "benchmarks": benchmarks},
            "job": {"output_path": str(self.output)},
        }
        path = self.directory / "submit.yaml"
        path.write_text(json.dumps(whole))
        return str(path)

    def start(self, *words: str | Path, **environ: str) -> subprocess.Popen[str]:
        """Start a command in a process of its own, which :meth:`close` ends at the latest."""
        return self.run_program(sys.executable, "-m", "gym_ray", *words, **environ)

    def run_program(self, *words: str | Path, **environ: str) -> subprocess.Popen[str]:
        """Start any program in the same way."""
        process = subprocess.Popen(  # noqa: S603 - words of our own
            [*map(str, words)],
            cwd=self.directory,
            env=self.head.environ() | self._environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """End what was started and still runs."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def here(self, *words: str | Path, code: int = 0) -> str:
        """Run a command in this process, and return its standard output."""
        done = CliRunner().invoke(self._command, [*map(str, words)], env=self._environ)
        if done.exit_code != code:
            raise AssertionError(f"{words}: {done.exit_code}: {done.exception!r}\n{done.output}")
        return done.stdout

    def refused(self, *words: str | Path) -> str:
        """Run a command in this process that must end with an error, and return that."""
        done = CliRunner().invoke(self._command, [*map(str, words)], env=self._environ)
        if not isinstance(done.exception, GymRayError):
            raise AssertionError(f"{words}: {done.exit_code}: {done.exception!r}\n{done.output}")  # noqa: TRY004
        return str(done.exception)

    def submit(self, benchmarks: dict[str, Any], *words: str, code: int = 0, **more: Any) -> Any:
        """Submit benchmarks, and return their job as the command prints it."""
        return json.loads(self.here("eval", "submit", self.document(benchmarks, **more), "--json", *words, code=code))

    def states(self, job_dir: str | Path, code: int) -> dict[str, Any]:
        """Return what the status command says of each benchmark, by name."""
        out = self.here("eval", "status", job_dir, "--json", code=code)
        return {one["name"]: one for one in json.loads(out)["benchmarks"]}
