"""What `eval submit` would do, shown before anything is done; nothing secret is shown."""

from __future__ import annotations

import re
import shlex
from typing import Any

from rich.console import Console
from rich.markup import escape

from gym_ray.settings.plain_yaml import REDACTED
from gym_ray.submission.planning import BenchmarkPlan, SubmitPlan

__all__ = ["plan_json", "print_plan"]


def print_plan(console: Console, plan: SubmitPlan) -> None:
    """Print the job's directory, and of each benchmark what it would run and where its files would be."""
    console.print(f"[dim]job[/] {escape(str(plan.job_dir))}", soft_wrap=True)
    for benchmark in plan.benchmarks:
        console.print(f"[bold]{escape(benchmark.name)}[/]")
        for label, text in _lines(benchmark):
            console.print(f"  [dim]{label:<9}[/] {escape(text)}", soft_wrap=True)


def _lines(plan: BenchmarkPlan) -> list[tuple[str, str]]:
    environ = [*plan.environ.literal, *plan.environ.runtime]
    lines = [("prepare", _program(plan, plan.prepare)), ("runs", _runs(plan)), ("records", str(plan.output))]
    if plan.command is not None:
        lines.pop()
    captures = plan.captures or ("its command's own matter" if plan.command is not None else "off")
    lines += [("captures", captures), ("env", " ".join(environ))]
    return [(label, text) for label, text in lines if text]


def plan_json(plan: SubmitPlan) -> dict[str, Any]:
    """Return the same as a JSON document."""
    return {
        "job_id": plan.job_dir.name,
        "job_dir": str(plan.job_dir),
        "benchmarks": [_json(b) for b in plan.benchmarks],
    }


def _json(plan: BenchmarkPlan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "directory": str(plan.directory),
        "state": "planned",
        "prepare": _program(plan, plan.prepare) or None,
        "runs": _runs(plan),
        "output": None if plan.command is not None else str(plan.output),
        "captures": plan.captures,
        "env": sorted({*plan.environ.literal, *plan.environ.runtime}),
        "resumable": plan.resumable,
    }


def _runs(plan: BenchmarkPlan) -> str:
    if plan.command is not None:
        return _program(plan, plan.command)
    return _without_secrets(plan, shlex.join(["gym-ray", "eval", "run", *plan.arguments]))


def _program(plan: BenchmarkPlan, program: str | tuple[str, ...] | None) -> str:
    text = shlex.join(program) if isinstance(program, tuple) else program or ""
    return _without_secrets(plan, text)


def _without_secrets(plan: BenchmarkPlan, text: str) -> str:
    # Quoting for the settings' grammar and for a shell changes a text; what it may have become is hidden, too.
    spelled = {
        form for secret in plan.secrets for form in (secret, secret.replace("'", "\\'"), secret.replace("\\", r"\\"))
    }
    if not spelled:
        return text
    return re.sub("|".join(map(re.escape, sorted(spelled, key=len, reverse=True))), REDACTED, text)
