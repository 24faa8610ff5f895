"""The document that says what to submit: read, filled in, checked (D134).

Every mistake is one line with its file, its key, what is wrong and what would be right. A document knows nothing of the
job that it will become.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import Field

from gym_ray.errors import SettingsError
from gym_ray.settings.document import Document
from gym_ray.settings.fields import FrozenModel, Name
from gym_ray.settings.overrides import COMMAND_LINE, Action, Override, apply_overrides, deep_merge, parse_override
from gym_ray.settings.plain_yaml import plain
from gym_ray.settings.problems import KeyPath, combine, did_you_mean
from gym_ray.settings.yaml_files import Layer, dump_yaml, read_yaml
from gym_ray.submission.benchmark_names import name_problem, same_in_any_case
from gym_ray.submission.checking import checked, checked_kind, mistake_at
from gym_ray.submission.computes import COMPUTES, RayCompute, SlurmCompute
from gym_ray.submission.environment import EnvValue
from gym_ray.submission.services import SERVICES, ExternalService, LocalModelService, VllmService

__all__ = ["NOTHING", "Benchmark", "DriverPart", "JobPart", "Submission", "check_submittable", "read_submission"]

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
POLICY_KEYS = ("policy_base_url", "policy_model_name", "policy_api_key")
"""Settings of a run that ``driver.policy_model`` gives."""

_OWN_KEYS = {"output_jsonl_fpath": "records are written to artifacts/rollouts.jsonl of the job directory"}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Benchmark(FrozenModel):
    """One evaluation of a document.

    Attributes:
        prepare: A shell command, or its words, that runs first. A map is the form of Slurm's documents.
        run: Settings of ``gym-ray eval run``.
        command: A shell command, or its words, in place of ``eval run``; exits as ``eval run`` does.
        resumable: Go on with what is there when the benchmark is started again.
    """

    prepare: str | tuple[str, ...] | dict[str, Any] | None = None
    run: dict[str, Any] = Field(default_factory=dict)
    command: Name | tuple[str, ...] | None = None
    resumable: bool = False


class DriverPart(FrozenModel):
    """What the evaluations share.

    Attributes:
        container: Image, for Slurm.
        gym_install: How the package gets into it, for Slurm.
        policy_model: The service that is evaluated.
        policy_host: Host of a service that the job itself starts.
        policy_model_type: The model server in front of it; None takes the one that suits the service.
        benchmarks: Evaluations by name.
        env: Environment of the job.
        mounts: Directories, for Slurm.
    """

    container: Name | None = None
    gym_install: str | tuple[str, ...] | dict[str, Any] | None = None
    policy_model: Name | None = None
    policy_host: Name = "localhost"
    policy_model_type: Name | None = None
    benchmarks: dict[str, Benchmark]
    env: dict[str, EnvValue] = Field(default_factory=dict)
    mounts: tuple[str, ...] | dict[str, str] = ()


class JobPart(FrozenModel):
    """Where jobs are kept.

    Attributes:
        output_path: Absolute path of a directory that every node has.
    """

    output_path: Name
    name: Name | None = None


class _Otel(FrozenModel):
    enabled: bool = False
    endpoint: Name | None = None
    protocol: Name | None = None
    service_name: Name | None = None
    headers: dict[str, str] = Field(default_factory=dict)


class _Whole(FrozenModel):
    services: dict[str, dict[str, Any]] = Field(default_factory=dict)
    compute: dict[str, dict[str, Any]]
    driver: dict[str, Any]
    job: dict[str, Any]
    otel: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Submission:
    """A document that is right in itself.

    Args:
        path: Where it came from.
        services: Services by name.
        compute_name: The name of the one compute.
        compute: Where the job shall run.
        driver: What its evaluations are.
        job: Where jobs are kept.
        otel_enabled: Whether it asks for OpenTelemetry.
        document: Everything, filled in, with the place of each key.
    """

    path: str
    services: Mapping[str, ExternalService | LocalModelService | VllmService]
    compute_name: str
    compute: RayCompute | SlurmCompute
    driver: DriverPart
    job: JobPart
    otel_enabled: bool = False
    document: Document = field(default_factory=lambda: Document({}, ()), repr=False)

    def place(self, *path: str) -> str:
        """Return ``file:line`` of a key, or of the nearest key above it."""
        return self.document.place(path)

    @property
    def working_directory(self) -> Path | None:
        """The directory that ``working_dir`` of a Ray compute names, which is relative to the document."""
        if not isinstance(self.compute, RayCompute) or self.compute.working_dir is None:
            return None
        return Path(self.path).parent.absolute() / self.compute.working_dir

    def settled(self, working_dir: Path | None = None) -> Submission:
        """Return the same for a document that may be kept elsewhere: the directory to upload has its absolute path.

        Args:
            working_dir: The directory, where it is another one than the document says; relative to where we are.
        """
        chosen = self.working_directory if working_dir is None else working_dir.absolute()
        if chosen is None or not isinstance(self.compute, RayCompute):
            return self
        compute = self.compute.model_copy(update={"working_dir": str(chosen)})
        own = {"compute": {self.compute_name: {"working_dir": str(chosen)}}}
        document = replace(self.document, tree=deep_merge(self.document.tree, own))
        return replace(self, compute=compute, document=document)

    def resolved(self, *, redact: bool) -> str:
        """Return the document as YAML, filled in and without its scratch keys.

        Args:
            redact: Replace what is secret.
        """
        tree = {key: value for key, value in self.document.tree.items() if not key.startswith("_")}
        secrets = self.document.secrets if redact else frozenset[str]()
        shown = plain(tree, secrets, redact)
        return dump_yaml(shown)


def read_submission(
    path: str | Path, overrides: Sequence[str] = (), *, environ: Mapping[str, str] = NOTHING
) -> Submission:
    """Read a document, put overrides on top, fill it in, and check it.

    Args:
        path: The document (YAML).
        overrides: ``++key=value`` and its relatives. Root keys that begin with ``_`` are scratch space for
            interpolation: the document's own may be changed, none may be added.
        environ: What ``${oc.env:VAR}`` reads.

    Raises:
        SettingsError: It cannot be read, or something in it is wrong; one line for each mistake.
    """
    layer = read_yaml(Path(path))
    tokens = [parse_override(token) for token in overrides]
    for token in tokens:
        _check_scratch(token, layer.tree)
    tree, own = apply_overrides(layer.tree, tokens)
    filled = Document.of([Layer(layer.where, tree, layer.lines)], environ)
    whole = Document(filled.tree, (*filled.layers, Layer(COMMAND_LINE, own)), (), filled.secrets)
    return _checked_document(str(path), whole)


def check_submittable(submission: Submission) -> None:
    """Make sure that what a document asks for can be run on Ray; Slurm's documents cannot.

    Raises:
        SettingsError: It cannot; one line for each reason.
    """
    compute = ("compute", submission.compute_name)
    found: list[tuple[tuple[str, ...], str, str]] = []
    if isinstance(submission.compute, SlurmCompute):
        remedy = "use a compute of type ray; the document was checked, and --dry-run shows its plan"
        found.append(((*compute, "type"), "nothing is submitted to Slurm from here", remedy))
    for name, service in submission.services.items():
        if isinstance(service, VllmService):
            remedy = "start the server, and name it as {type: external, base_url: …, model: …}"
            found.append((("services", name, "type"), "a job on Ray starts no vLLM container", remedy))
    for key in ("container", "gym_install", "mounts"):
        if getattr(submission.driver, key):
            remedy = "leave it out; nodes need the package and the storage beforehand"
            found.append((("driver", key), "means nothing for a job on Ray", remedy))
    for name, benchmark in submission.driver.benchmarks.items():
        if isinstance(benchmark.prepare, Mapping):
            remedy = "write the command that prepares the benchmark"
            found.append((("driver", "benchmarks", name, "prepare"), "a map prepares nothing here", remedy))
    if submission.otel_enabled:
        remedy = "set it to false; metrics are on Ray's own endpoint"
        found.append((("otel", "enabled"), "OpenTelemetry is not exported", remedy))
    if found:
        raise combine([mistake_at(submission.document, *one) for one in found])


def _check_scratch(token: Override, tree: Mapping[str, Any]) -> None:
    root = token.path[0]
    if root.startswith("_") and root not in tree and token.action in (Action.ADD, Action.SET_OR_ADD):
        known = [key for key in tree if key.startswith("_")]
        remedy = did_you_mean(root, known) or "write it into the document"
        raise SettingsError(COMMAND_LINE, root, "scratch keys can be changed, not added", remedy)


def _checked_document(path: str, document: Document) -> Submission:
    tree = {key: value for key, value in document.tree.items() if not key.startswith("_")}
    whole = checked(_Whole, tree, (), document)
    mistakes: list[SettingsError] = []

    def part(model: Any, value: Any, *where: str) -> Any:
        try:
            check = checked_kind if isinstance(model, Mapping) else checked
            return check(model, value, where, document)
        except SettingsError as mistake:
            mistakes.append(mistake)
            return None

    services = {name: part(SERVICES, value, "services", name) for name, value in whole.services.items()}
    computes = {name: part(COMPUTES, value, "compute", name) for name, value in whole.compute.items()}
    driver, job = part(DriverPart, whole.driver, "driver"), part(JobPart, whole.job, "job")
    otel = part(_Otel, whole.otel, "otel")
    if len(computes) != 1:
        problem = f"names {len(computes)} computes: {', '.join(computes)}" if computes else "names no compute"
        mistakes.append(mistake_at(document, ("compute",), problem, "give exactly one"))
    if mistakes:
        raise combine(mistakes)
    name, compute = next(iter(computes.items()))
    found = Submission(path, services, name, compute, driver, job, otel.enabled, document)
    problems = [*_driver_mistakes(found), *_env_mistakes(found)]
    problems += [mistake_at(document, path, "holds a NUL character", "remove it") for path in _with_nul(tree, ())]
    if not Path(job.output_path).is_absolute():
        remedy = "give an absolute path of a directory that every node has"
        problems.append(mistake_at(document, ("job", "output_path"), "is not an absolute path", remedy))
    if problems:
        raise combine(problems)
    return found


def _with_nul(value: Any, path: KeyPath) -> list[KeyPath]:
    """Return where text has a character that no path, program or environment can have; a run's settings may have it."""
    if isinstance(value, str):
        return [path] if "\0" in value else []
    if isinstance(value, Mapping):
        inner = [_with_nul(child, (*path, key)) for key, child in value.items() if key != "run"]
    else:
        inner = [_with_nul(child, (*path, n)) for n, child in enumerate(value)] if isinstance(value, list) else []
    return [found for each in inner for found in each]


def _driver_mistakes(submission: Submission) -> list[SettingsError]:
    driver, document = submission.driver, submission.document
    above = ("driver", "benchmarks")
    mistakes = []
    if driver.policy_model is not None and driver.policy_model not in submission.services:
        problem = f"there is no service {driver.policy_model!r}"
        remedy = did_you_mean(driver.policy_model, submission.services) or "define it under services"
        mistakes.append(mistake_at(document, ("driver", "policy_model"), problem, remedy))
    if not driver.benchmarks:
        mistakes.append(mistake_at(document, above, "names no benchmark", "give at least one"))
    for name, other in same_in_any_case(driver.benchmarks):
        problem = f"differs from {other!r} in case only, which some file systems do not see"
        mistakes.append(mistake_at(document, (*above, name), problem, "rename one of them"))
    for name, benchmark in driver.benchmarks.items():
        problem = name_problem(name)
        if problem:
            remedy = "use A-Z a-z 0-9 . _ - and what a folder can be called"
            mistakes.append(mistake_at(document, (*above, name), problem, remedy))
        mistakes += _benchmark_mistakes(name, benchmark, submission)
    return mistakes


def _benchmark_mistakes(name: str, benchmark: Benchmark, submission: Submission) -> list[SettingsError]:
    above = ("driver", "benchmarks", name)
    found: list[tuple[tuple[str, ...], str, str]] = []
    if benchmark.command is not None:
        if "run" in benchmark.model_fields_set or benchmark.resumable:
            remedy = "keep either command, or run and resumable"
            found.append(((*above, "command"), "excludes run and resumable", remedy))
        if not benchmark.command:
            found.append(((*above, "command"), "names no program", "write a shell command, or its words"))
    for key in POLICY_KEYS if submission.driver.policy_model is not None else ():
        if key in benchmark.run:
            remedy = "leave it out, or leave driver.policy_model out"
            found.append(((*above, "run", key), "is given by driver.policy_model already", remedy))
    found += [((*above, "run", key), "cannot be moved", why) for key, why in _OWN_KEYS.items() if key in benchmark.run]
    if not isinstance(benchmark.run.get("observability_enabled", True), bool):
        found.append(((*above, "run", "observability_enabled"), "is not accepted", "should be true or false"))
    return [mistake_at(submission.document, *one) for one in found]


def _env_mistakes(submission: Submission) -> list[SettingsError]:
    places = {
        ("driver", "env"): submission.driver.env,
        ("compute", submission.compute_name, "env"): submission.compute.env,
    }
    for name, service in submission.services.items():
        if isinstance(service, VllmService):
            places[("services", name, "env")] = service.env
    return [
        mistake_at(submission.document, (*above, name), "cannot be a variable's name", "use A-Z a-z 0-9 _")
        for above, values in places.items()
        for name in values
        if not _ENV_NAME.fullmatch(name)
    ]
