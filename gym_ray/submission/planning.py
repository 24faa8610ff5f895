"""What a document comes to: for each benchmark its directory, its arguments, its captures, its environment (D131-D133).

Pure: nothing is read, written or looked up here but what is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import SettingsError
from gym_ray.settings.overrides import deep_merge
from gym_ray.settings.problems import MIN_SECRET_CHARS, combine, is_secret_key
from gym_ray.submission.checking import mistake_at
from gym_ray.submission.documents import NOTHING, Benchmark, Submission
from gym_ray.submission.environment import EnvPlan, plan_environment
from gym_ray.submission.policy import policy_settings
from gym_ray.submission.tokens import run_tokens

__all__ = ["CAPTURES", "OUTPUT", "BenchmarkPlan", "SubmitPlan", "final_run", "job_name", "plan_submit", "run_tokens"]

OUTPUT = "artifacts/rollouts.jsonl"
CAPTURES = "model-calls"
_CONFIGS = "config_paths"


@dataclass(frozen=True, slots=True)
class BenchmarkPlan:
    """One benchmark of a job.

    Args:
        name: Its name, and that of its directory.
        directory: Its directory.
        arguments: What follows ``gym-ray eval run``; empty for a benchmark with a command of its own. May hold
            credentials.
        output: Its records.
        captures: Where its model calls are captured: a path or a URL; None when they are not.
        environ: Its environment.
        prepare: What runs first: a shell command or its words; None for nothing.
        command: What runs in place of ``eval run``: a shell command or its words.
        resumable: Whether it goes on with what is there when it is started again.
        inputs: Files that the run reads, as its settings write them.
        secrets: Texts that no log may show.
    """

    name: str
    directory: Path
    arguments: tuple[str, ...] = field(repr=False)
    output: Path
    captures: str | None
    environ: EnvPlan
    prepare: str | tuple[str, ...] | None = None
    command: str | tuple[str, ...] | None = None
    resumable: bool = False
    inputs: tuple[str, ...] = ()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)


@dataclass(frozen=True, slots=True)
class SubmitPlan:
    """One job.

    Args:
        job_dir: Its directory, absolute.
        benchmarks: Its benchmarks, in the document's order.
        submission: The document.
    """

    job_dir: Path
    benchmarks: tuple[BenchmarkPlan, ...]
    submission: Submission = field(repr=False)


def job_name(now: float, token: str) -> str:
    """Return the name of a job's directory, which is also the job's id.

    Args:
        now: Unix time, seconds.
        token: Six hexadecimal digits that no other job of that second has.
    """
    return f"gym-job-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}-{token}"


def final_run(benchmark_dir: str, run: Mapping[str, Any], *, resumable: bool) -> dict[str, Any]:
    """Return the settings of a benchmark's run: capture is on, and in its directory, unless it says otherwise (D132).

    Args:
        benchmark_dir: Absolute path of the benchmark's directory.
        run: What the document says.
        resumable: Whether the run goes on with what is there.
    """
    final: dict[str, Any] = {"observability_enabled": True, **run}
    if final["observability_enabled"] and not final.get("model_call_capture_dir"):
        final["model_call_capture_dir"] = f"{benchmark_dir}/{CAPTURES}"
    final.setdefault("require_complete", True)
    if resumable:
        final.setdefault("resume_from_cache", True)
    return final


def plan_submit(doc: Submission, job_dir: str | Path, *, environ: Mapping[str, str] = NOTHING) -> SubmitPlan:
    """Return what a document comes to in a job directory.

    Args:
        doc: The document.
        job_dir: The job's directory; it need not exist.
        environ: The environment of whoever submits, for ``host:`` values.

    Raises:
        SettingsError: Something cannot be planned; one line for each mistake.
    """
    if not PurePosixPath(job_dir).is_absolute():
        raise SettingsError(str(job_dir), "", "is not an absolute path", "every node must find the job directory")
    plans, mistakes = [], []
    for name, benchmark in doc.driver.benchmarks.items():
        try:
            plans.append(_planned(doc, name, benchmark, Path(job_dir) / name, environ))
        except SettingsError as mistake:
            mistakes.append(mistake)
    mistakes += _shared_captures(doc, plans)
    if mistakes:
        raise combine(mistakes)
    return SubmitPlan(Path(job_dir), tuple(plans), doc)


def _planned(
    doc: Submission, name: str, benchmark: Benchmark, directory: Path, environ: Mapping[str, str]
) -> BenchmarkPlan:
    plan = _environment(doc, environ)
    output = directory / OUTPUT
    prepare = None if isinstance(benchmark.prepare, Mapping) else benchmark.prepare or None
    if benchmark.command is not None:
        return BenchmarkPlan(name, directory, (), output, None, plan, prepare, benchmark.command, secrets=plan.secrets)
    above = ("driver", "benchmarks", name, "run")
    policy = policy_settings(doc, environ)
    # The policy's settings stand behind the run's own and before what is added to both, as the peer has them.
    final = final_run(str(directory), deep_merge(benchmark.run, dict(policy.settings)), resumable=benchmark.resumable)
    captures = _captures(doc, above, final)
    configs = final.pop(_CONFIGS, None) or []
    if not isinstance(configs, list) or not all(isinstance(path, str) and path for path in configs):
        raise mistake_at(doc.document, (*above, _CONFIGS), "is not a list of file names", "write [a.yaml, b.yaml]")
    arguments = [*run_tokens({"output_jsonl_fpath": str(output)})]
    arguments += [word for path in configs for word in ("--config", path)]
    arguments += ["--model-type", policy.model_type] if policy.model_type is not None else []
    arguments += run_tokens(final, f"{doc.place(*above)}: {'.'.join(above)}")
    inputs = [
        *configs,
        *policy.inputs,
        *(final[key] for key in ("input_jsonl_fpath", "prompt_config") if final.get(key)),
    ]
    return BenchmarkPlan(
        name,
        directory,
        tuple(arguments),
        output,
        captures,
        plan,
        prepare,
        None,
        benchmark.resumable,
        tuple(str(path) for path in inputs),
        plan.secrets | policy.secrets | _secrets(final),
    )


def _environment(doc: Submission, environ: Mapping[str, str]) -> EnvPlan:
    common = plan_environment(doc.driver.env, environ, where=doc.place("driver", "env"), key="driver.env")
    key = ("compute", doc.compute_name, "env")
    own = plan_environment(doc.compute.env, environ, where=doc.place(*key), key=".".join(key))
    literal = {k: v for k, v in {**common.literal, **own.literal}.items() if k not in own.runtime}
    runtime = {k: v for k, v in {**common.runtime, **own.runtime}.items() if k not in own.literal}
    return EnvPlan(literal, runtime, common.secrets | own.secrets)


def _captures(doc: Submission, above: tuple[str, ...], final: Mapping[str, Any]) -> str | None:
    """Return where a run's captures are: an absolute path or a URL of an object store."""
    if not final["observability_enabled"]:
        return None
    key = (*above, "model_call_capture_dir")
    where = final["model_call_capture_dir"]
    if not isinstance(where, str):
        raise mistake_at(doc.document, key, "is not text", "give an absolute path, or a URL such as s3://bucket/prefix")
    try:
        return str(CaptureLocation.of(where))
    except SettingsError as wrong:
        raise mistake_at(doc.document, key, wrong.problem, wrong.remedy) from None


def _shared_captures(doc: Submission, plans: Sequence[BenchmarkPlan]) -> list[SettingsError]:
    """Return the benchmarks whose rollouts would mix with those of an earlier one in one capture directory (D19)."""
    first: dict[str, str] = {}
    mistakes = []
    for plan in plans:
        run = doc.driver.benchmarks[plan.name].run
        if plan.captures is None or run.get("unique_rollout_ids") is True:
            continue
        place = plan.captures.rstrip("/") if "://" in plan.captures else str(PurePosixPath(plan.captures))
        other = first.setdefault(place, plan.name)
        if other != plan.name:
            key = ("driver", "benchmarks", plan.name, "run", "model_call_capture_dir")
            problem = f"is that of {other!r} too, and both have rollouts 0-0, 0-1 and so on, whose captures would mix"
            remedy = "give each a directory of its own, or set unique_rollout_ids: true in their runs"
            mistakes.append(mistake_at(doc.document, key, problem, remedy))
    return mistakes


def _secrets(value: Any, *, secret: bool = False) -> frozenset[str]:
    """Return the texts under secret keys of a run."""
    if isinstance(value, Mapping):
        parts = [_secrets(child, secret=secret or is_secret_key(str(key))) for key, child in value.items()]
        return frozenset[str]().union(*parts)
    if isinstance(value, list | tuple):
        return frozenset[str]().union(*(_secrets(child, secret=secret) for child in value))
    hidden = secret and isinstance(value, str) and len(value) >= MIN_SECRET_CHARS and "${" not in value
    return frozenset({value}) if hidden else frozenset()
